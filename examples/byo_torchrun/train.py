"""A loop that knows nothing of campaigns: its batch size is an argument, and it prints its loss."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train a small network on random numbers."""
    parser = argparse.ArgumentParser()
    for name, value in (("--batch_size", 8), ("--accumulation", 1), ("--steps", 20), ("--width", 64)):
        parser.add_argument(name, type=int, default=value)
    args = parser.parse_args()
    on_gpu, several = torch.cuda.is_available(), "RANK" in os.environ  # accelerate sets none for a single process
    if several:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    torch.manual_seed(1)
    layers = [layer for _ in range(8) for layer in (nn.Linear(args.width, args.width), nn.GELU())]
    model: nn.Module = nn.Sequential(*layers).to(device)
    if several:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        for _ in range(args.accumulation):
            inputs = torch.randn(args.batch_size, 1024, args.width, device=device)
            loss = (model(inputs) - inputs.flip(-1)).square().mean() / args.accumulation
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not several or dist.get_rank() == 0:
            print(f"step {step} loss {loss.item() * args.accumulation:.4f}", flush=True)
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
