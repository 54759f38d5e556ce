"""An all-reduce over the ranks of a node, started by their launcher. Run by file path, with a file to write to.

Runs under the Python of the training: 3.8 syntax, and nothing of this package.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
"""The modules beside this file would hide others of their names."""

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

GPU_BYTES = 256 << 20
CPU_BYTES = 4 << 20
WARM_UP = 3
ROUNDS = 10
TIMEOUT_S = 120


def main() -> None:
    """Add the ranks' numbers plus one; the first rank writes whether all got the sum, and how fast."""
    rank, local, ranks = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    on_gpus = os.environ.get("DS_ACCELERATOR") != "cpu"
    if on_gpus:
        if os.environ.get("CAMPAIGN_VISIBLE_DEVICES"):  # the launcher numbers devices from 0, Slurm gave us others
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CAMPAIGN_VISIBLE_DEVICES"]
        torch.cuda.set_device(local)
    backend = "nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    device, size = ("cuda", GPU_BYTES) if on_gpus else ("cpu", CPU_BYTES)
    correct = _correct(rank, ranks, size, device)
    seconds = _seconds(size, device)
    if rank == 0:
        bus = 2 * (ranks - 1) / ranks * size / seconds / 1e9 if ranks > 1 else None
        facts = {"backend": backend, "ranks": ranks, "correct": correct, "bus_gb_s": bus}
        with open(sys.argv[1], "w") as file:
            json.dump(facts, file)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # see engine.py, `leave_process_group`


def _correct(rank: int, ranks: int, size: int, device: str) -> bool:
    numbers = torch.full((size // 4,), rank + 1.0, device=device)
    dist.all_reduce(numbers)
    wrong = (numbers != ranks * (ranks + 1) / 2).any().float().reshape(1)
    dist.all_reduce(wrong)
    return not wrong.item()


def _seconds(size: int, device: str) -> float:
    numbers = torch.zeros(size // 4, device=device)
    for _ in range(WARM_UP):
        dist.all_reduce(numbers)
    _wait(device)
    begun_s = time.perf_counter()
    for _ in range(ROUNDS):
        dist.all_reduce(numbers)
    _wait(device)
    return (time.perf_counter() - begun_s) / ROUNDS


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
