"""A training loop like nanoGPT's, which knows nothing of campaigns: it prints its losses."""

import sys
import time

import torch
from torch.nn.functional import cross_entropy

STEPS, SEQ_LEN, VOCAB = 40, 16, 64


def batch() -> torch.Tensor:
    return (torch.randint(VOCAB, (8, 1)) + torch.arange(SEQ_LEN + 1)) % VOCAB


torch.manual_seed(1337)
model = torch.nn.Sequential(torch.nn.Embedding(VOCAB, 32), torch.nn.Linear(32, VOCAB))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(sys.argv[1]))
began = time.time()
for iter_num in range(1, STEPS + 1):
    ids = batch()
    loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iter_num % 5 == 0:
        took, began = time.time() - began, time.time()
        print(f"iter {iter_num}: loss {loss.item():.4f}, time {took / 5 * 1000:.2f}ms, mfu -100.00%")
