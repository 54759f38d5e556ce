"""A plain Accelerate loop: GPT-2 from random weights on random tokens. It knows nothing of campaigns."""

import argparse

import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--accumulation", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--length", type=int, default=1024)
args = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=args.layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(1, args.steps + 1):
    for _ in range(args.accumulation):
        tokens = torch.randint(0, 50257, (args.batch_size, args.length), device=accelerator.device)
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
accelerator.end_training()
