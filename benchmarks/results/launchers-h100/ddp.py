"""A plain PyTorch loop for torchrun: GPT-2 from random weights on random tokens. It knows nothing of campaigns."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, required=True)
parser.add_argument("--accumulation", type=int, required=True)
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--length", type=int, default=1024)
args = parser.parse_args()
gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=args.layers)).to(device)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(1, args.steps + 1):
    for _ in range(args.accumulation):
        tokens = torch.randint(0, 50257, (args.batch_size, args.length), device=device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / args.accumulation
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}/{args.steps} loss {loss.item() * args.accumulation:.4f}", flush=True)
dist.destroy_process_group()
