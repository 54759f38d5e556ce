"""What ZeRO 3 costs the host, and what the built-in trainer takes away of it, one change after another.

    python benchmarks/zero3_host.py [--model MODEL] [--gpus N] [--rows A,B] [--repeats 3] [--steps 60] [--exact]
                                    [--out FILE]

gpt2        GPT-2 124M, 8 x 1,024 random tokens a pass, one pass a step: small enough that a step waits for the host
llama-8b    8 of Llama-3-8B's 32 layers, 1 x 512 tokens a pass, four passes a step

Random weights, bf16. Each row has what the rows above it have:

zero2       ZeRO 2, as the trainer has it: the yardstick
modules     ZeRO 3, each module gathered by itself, as DeepSpeed has it
blocks      whole transformer blocks gathered at once
scattered   gradients reduced out of their own tensors (contiguous_gradients: false)
spared      DeepSpeed's path without what decides nothing
joined      the weights of a gather put in order by one copy; on several GPUs
ahead       a whole block gathered while one computes; on several GPUs
reduced     gradients put in order by one copy, kept and measured in one call each, no waits for them: the trainer
compiled    each block and the loss compiled
flat        the weights of each block in two tensors: the trainer with `compile`

Each repeat of a row is a process of its own on each GPU, and all rows have their first before any has its second.
With `--exact`, operators are deterministic, and slower: rows that sum in the same order, `scattered` to `reduced`,
must then come to the same loss to the last digit.

Without a GPU the model is tiny, and only the host's share means something.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dscampaign.benchmarks.shared.results import commit_id, write_json

ROWS: Final = ("zero2", "modules", "blocks", "scattered", "spared", "joined", "ahead", "reduced", "compiled", "flat")


@dataclass(frozen=True)
class Work:
    """A model and its batch on each rank.

    Attributes:
        shape, tiny: fields of the model's configuration; tiny without a GPU.
        batch: samples a pass.
        length: tokens a sample.
        passes: micro-batches a step.
    """

    shape: Mapping[str, Any]
    tiny: Mapping[str, Any]
    batch: int
    length: int
    passes: int


WORKS: Final = {
    "gpt2": Work(
        {
            "model_type": "gpt2",
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_positions": 1024,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            "vocab_size": 50304,
        },
        {"n_embd": 96, "n_head": 2, "vocab_size": 512},
        *(8, 1024, 1),
    ),
    "llama-8b": Work(
        {
            "model_type": "llama",
            "num_hidden_layers": 8,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
        },
        {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 512,
        },
        *(1, 512, 4),
    ),
}
TRAIN: Final = {
    "precision": "bf16",
    "grad_clip": 1.0,
    "lr": 6e-5,  # ten times that, and losses of runs that differ by rounding alone part within 20 steps
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
}
WARMUP_STEPS: Final = 20
LIMIT_S: Final = 300


def measure(work: Work, row: str, steps: int) -> dict[str, Any]:
    """Trains in this process, a rank of the group. Times in ms: of a whole step, and of the host's processor in it."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.accelerator import get_accelerator

    from dscampaign.jobs.shared.ds_config import render
    from dscampaign.jobs.trainer.deepspeed_patches import compile_plain_linear, remove_waits, stay_ahead
    from dscampaign.jobs.trainer.engine import gather_whole_blocks, gathered_blocks, with_a_block_ahead
    from dscampaign.jobs.trainer.flat_parameters import join_blocks
    from dscampaign.jobs.trainer.model import blocks_of, parameter_groups

    device = get_accelerator()
    on_gpu, sharded = device.device_name() == "cuda", row != "zero2"
    shape = {**work.shape, **({} if on_gpu else work.tiny)}
    batch, length = (work.batch, work.length) if on_gpu else (1, 16)
    if not on_gpu:
        deepspeed.ops.__compatible_ops__ = {}
        torch.set_num_threads(1)
    device.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(verbose=False)
    torch.manual_seed(0)
    model = _model(shape)
    zero = {} if not sharded or _has(row, "scattered") else {"zero_optimization": {"contiguous_gradients": True}}
    ranks = {"accumulation": work.passes, "world_size": dist.get_world_size()}
    config: Any = render(TRAIN | {"zero_stage": 3 if sharded else 2}, micro_batch=batch, **ranks, overrides=zero)
    if _has(row, "flat"):
        join_blocks(model, blocks_of(model))
    elif _has(row, "blocks"):
        gather_whole_blocks(model, config)
    _change_deepspeed(row)
    if _has(row, "ahead"):
        config = with_a_block_ahead(config, model)
    groups = parameter_groups(model)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config, dist_init_required=False)
    remove_waits(engine.optimizer)
    if _has(row, "reduced"):
        stay_ahead(engine.optimizer)
    if _has(row, "compiled"):
        compile_plain_linear()
        model.compile_parts(gathered_blocks(model))
    tokens = torch.randint(0, shape["vocab_size"], (batch, length + 1), device=device.current_device_name())
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    step = partial(_step, engine, inputs, targets, work.passes)
    loss = [float(step().detach()) for _ in range(WARMUP_STEPS)][-1]
    whole_ms, host_ms = _timed(step, steps, device.synchronize if on_gpu else lambda: None)
    return {
        "row": row,
        "step_ms": whole_ms,
        "host_ms": host_ms,
        "peak_gb": round(device.max_memory_allocated() / 1e9, 2) if on_gpu else None,
        "loss": loss,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }


def _step(engine: Any, inputs: Any, targets: Any, passes: int) -> Any:
    for _ in range(passes):
        loss = engine(inputs, targets)
        engine.backward(loss)
        engine.step()
    return loss


def _change_deepspeed(row: str) -> None:
    """Changes in this process what the row has changed of DeepSpeed's functions."""
    from dscampaign.jobs.trainer.deepspeed_patches import join_gathered_weights, join_gradients, spare_the_host

    if row == "zero2" or _has(row, "spared"):
        spare_the_host()
    if _has(row, "joined"):
        join_gathered_weights()
    if _has(row, "reduced"):
        join_gradients()


def _model(shape: Mapping[str, Any]) -> Any:
    """With random weights on this rank's device, and with its loss."""
    import torch
    from deepspeed.accelerator import get_accelerator
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.model import CAUSAL_SDPA, NextTokenLoss, causal_sdpa

    AttentionInterface.register(CAUSAL_SDPA, causal_sdpa)
    with torch.device(get_accelerator().current_device_name()):
        bare = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), attn_implementation=CAUSAL_SDPA)
    return NextTokenLoss(bare, shape["vocab_size"])


def _has(row: str, change: str) -> bool:
    return ROWS.index(row) >= ROWS.index(change)


def _timed(step: Callable[[], Any], steps: int, synchronize: Callable[[], object]) -> tuple[float, float]:
    synchronize()
    begin, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    synchronize()
    ends = time.perf_counter() - begin, time.process_time() - busy
    return round(ends[0] / steps * 1e3, 2), round(ends[1] / steps * 1e3, 2)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Attention, too: its fast kernels sum in an order of their own."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    with sdpa_kernel(SDPBackend.MATH):
        yield


def _in_processes(model: str, gpus: int, row: str, steps: int, *, exact: bool) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(gpus), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--row", row, "--steps", str(steps), "--model", model]
    command += ["--exact"] if exact else []
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(gpus)
    ]
    try:
        said, complaint = ranks[0].communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"row": row, "error": [f"took longer than {LIMIT_S} s"]}
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if ranks[0].returncode:
        return {"row": row, "error": complaint.strip().splitlines()[-5:]}
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORKS, default="gpt2")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=ROWS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--exact", action="store_true", help="deterministic operators, to compare losses")
    asked = parser.parse_args()
    if asked.row:
        with _deterministic() if asked.exact else nullcontext():
            print(json.dumps(measure(WORKS[asked.model], asked.row, asked.steps)))
        return
    packages = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    document: dict[str, Any] = {"commit": commit_id(), "packages": packages, "model": asked.model, "gpus": asked.gpus}
    document |= {"steps": asked.steps, "exact": asked.exact, "runs": []}
    for _ in range(asked.repeats):
        for row in asked.rows:
            document["runs"].append(_in_processes(asked.model, asked.gpus, row, asked.steps, exact=asked.exact))
            print(document["runs"][-1], flush=True)
            write_json(asked.out, document)
    _show(document["runs"])


def _show(runs: list[dict[str, Any]]) -> None:
    times = {row: [run["step_ms"] for run in runs if run["row"] == row and "step_ms" in run] for row in ROWS}
    yardstick = statistics.median(times["zero2"]) if times["zero2"] else None
    for row, found in times.items():
        if not found:
            continue
        middle = statistics.median(found)
        ratio = f"{middle / yardstick:.2f} x zero2" if yardstick else ""
        print(f"{row:10} {middle:7.1f} ms a step ({', '.join(f'{one:.1f}' for one in found)})  {ratio}")


if __name__ == "__main__":
    main()
