"""What ZeRO 3 costs the host, and what the built-in trainer takes away of it, one change after another, on one GPU.

    python benchmarks/zero3_host.py [--repeats 3] [--steps 60] [--out FILE]

GPT-2 124M with random weights, 8 x 1,024 random tokens a step in bf16, eager: small enough that a step waits for the
host. Each row has what the rows above it have:

zero2       ZeRO 2, as the trainer has it: the yardstick
modules     ZeRO 3, each module gathered by itself, as DeepSpeed has it
blocks      whole transformer blocks gathered at once
scattered   gradients reduced out of their own tensors (contiguous_gradients: false)
spared      DeepSpeed's path without what decides nothing: what the trainer does

Each repeat of a row is a process of its own, and all rows have their first before any has its second. Without a GPU the
model is tiny, and only the host's share means something.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dscampaign.benchmarks.shared.results import commit_id, write_json

ROWS: Final = ("zero2", "modules", "blocks", "scattered", "spared")
SHAPE: Final[dict[str, int]] = {"n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50304}
TINY: Final[dict[str, int]] = {"n_layer": 12, "n_embd": 96, "n_head": 2, "n_positions": 64, "vocab_size": 512}
TRAIN: Final = {
    "precision": "bf16",
    "grad_clip": 1.0,
    "lr": 6e-4,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
}
WARMUP_STEPS: Final = 20


def measure(row: str, steps: int) -> dict[str, Any]:
    """Trains in this process. Times in ms: of a whole step, and of the host's processor in it."""
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    from transformers import GPT2Config, GPT2LMHeadModel

    from dscampaign.jobs.shared.ds_config import render
    from dscampaign.jobs.trainer.deepspeed_patches import remove_waits, spare_the_host
    from dscampaign.jobs.trainer.model import NextTokenLoss, parameter_groups
    from dscampaign.jobs.trainer.whole_blocks import gather_whole_blocks

    device = get_accelerator()
    on_gpu, level = device.device_name() == "cuda", ROWS.index(row)
    shape, batch, length = (SHAPE, 8, 1024) if on_gpu else (TINY, 1, 16)
    if not on_gpu:
        deepspeed.ops.__compatible_ops__ = {}
        torch.set_num_threads(1)
    deepspeed.init_distributed(verbose=False)
    torch.manual_seed(0)
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = NextTokenLoss(GPT2LMHeadModel(GPT2Config(**shape, **none)), shape["vocab_size"])
    stage = 3 if level else 2
    zero = {} if stage == 2 or row in ROWS[3:] else {"zero_optimization": {"contiguous_gradients": True}}
    config = render(TRAIN | {"zero_stage": stage}, micro_batch=batch, accumulation=1, world_size=1, overrides=zero)
    if row in ROWS[2:]:
        gather_whole_blocks(model, config)
    if row in ("zero2", "spared"):
        spare_the_host()
    groups = parameter_groups(model)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config, dist_init_required=False)
    remove_waits(engine.optimizer)
    tokens = torch.randint(0, shape["vocab_size"], (batch, length + 1), device=device.current_device_name())

    def step() -> Any:
        loss = engine(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        engine.backward(loss)
        engine.step()
        return loss

    losses = [float(step().detach()) for _ in range(WARMUP_STEPS)]
    whole_ms, host_ms = _timed(step, steps, device.synchronize if on_gpu else lambda: None)
    return {
        "row": row,
        "step_ms": whole_ms,
        "host_ms": host_ms,
        "peak_gb": round(device.max_memory_allocated() / 1e9, 2) if on_gpu else None,
        "loss": losses[-1],
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def _timed(step: Callable[[], Any], steps: int, synchronize: Callable[[], object]) -> tuple[float, float]:
    synchronize()
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    synchronize()
    ends = time.perf_counter() - begin, time.process_time() - busy
    return round(ends[0] / steps * 1e3, 2), round(ends[1] / steps * 1e3, 2)


def _in_process(row: str, steps: int) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--row", row, "--steps", str(steps)]
    done = subprocess.run(command, env=os.environ | ranks, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return {"row": row, "error": done.stderr.strip().splitlines()[-5:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(measure(asked.row, asked.steps)))
        return
    packages = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    document: dict[str, Any] = {"commit": commit_id(), "packages": packages, "steps": asked.steps, "runs": []}
    for _ in range(asked.repeats):
        for row in ROWS:
            document["runs"].append(_in_process(row, asked.steps))
            print(document["runs"][-1], flush=True)
            write_json(asked.out, document)
    _show(document["runs"])


def _show(runs: list[dict[str, Any]]) -> None:
    times = {row: [run["step_ms"] for run in runs if run["row"] == row and "step_ms" in run] for row in ROWS}
    yardstick = statistics.median(times["zero2"]) if times["zero2"] else None
    for row, found in times.items():
        middle = statistics.median(found) if found else float("nan")
        ratio = f"{middle / yardstick:.2f} x zero2" if yardstick else ""
        print(f"{row:10} {middle:7.1f} ms a step ({', '.join(f'{one:.1f}' for one in found)})  {ratio}")


if __name__ == "__main__":
    main()
