"""The trainer's engines beside the plain FSDP2 loop that PyTorch's documentation leads to, in the same call.

    python benchmarks/fsdp2.py [--model MODEL] [--gpus N] [--passes N] [--rows A,B]
                               [--repeats 3] [--steps 20] [--out FILE]

bare        ``fully_shard`` for each block, each block and the loss compiled, fused AdamW, gradients clipped
bare-last   the same, gradients reduced after the last pass of a step
each        the trainer's FSDP2 engine
last        the same with ``fsdp2_reduce: last``
zero1 to 3  the trainer with DeepSpeed; installed-zero1 to 3 with DeepSpeed as installed, ``deepspeed_patches: false``

All rows train the same model from random weights on the same random tokens, in bf16 with fp32 states. Each repeat of a
row is a process of its own on each GPU, and all rows have their first repeat before any has its second. Without a GPU
the model is tiny: that shows that the script works, and measures nothing.
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
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from dscampaign.benchmarks.shared.results import commit_id, write_json

OURS: Final[Mapping[str, Mapping[str, Any]]] = {
    "each": {"engine": "fsdp2", "zero_stage": 0},
    "last": {"engine": "fsdp2", "zero_stage": 0, "fsdp2_reduce": "last"},
    **{f"zero{stage}": {"zero_stage": stage} for stage in (1, 2, 3)},
    **{f"installed-zero{stage}": {"zero_stage": stage, "deepspeed_patches": False} for stage in (1, 2, 3)},
}
ROWS: Final = ("bare", "bare-last", *OURS)
LLAMA: Final = {"model_type": "llama", "num_key_value_heads": 8, "intermediate_size": 8192, "tie_word_embeddings": True}
DROPOUT: Final = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
MODELS: Final[Mapping[str, tuple[Mapping[str, Any], int, int]]] = {
    "gpt2": ({"model_type": "gpt2", **DROPOUT}, 16, 1024),
    "llama-1b": ({**LLAMA, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}, 4, 2048),
    "llama-3b": ({**LLAMA, "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24}, 2, 2048),
}
"""Fields of the model's configuration, samples of a pass on each GPU, and tokens of a sample."""
TINY: Final = ({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, **DROPOUT}, 2, 32)
VOCABULARY: Final = 50304
TRAIN: Final = {"lr": 6e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
WARMUP_STEPS: Final = 8
LIMIT_S: Final = 300


def measure(model_name: str, row: str, passes: int, steps: int) -> dict[str, Any]:
    """Train in this process, a rank of the group.

    Returns:
        ``step_ms``, ``tokens_per_s`` over all ranks, ``peak_gb`` of this one, and the last ``loss``.
    """
    import deepspeed
    import torch
    import torch.distributed as dist
    from deepspeed.accelerator import get_accelerator

    device = get_accelerator()
    on_gpu = device.device_name() == "cuda"
    shape, batch, length = MODELS[model_name] if on_gpu else TINY
    if not on_gpu:
        deepspeed.ops.__compatible_ops__ = {}
    device.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(verbose=False)
    place = torch.device(device.current_device_name())
    torch.manual_seed(0)
    model = _model(shape, place)
    if row in OURS:
        train = _ours(model, row, batch, length, passes, compiled=on_gpu)
    else:
        train = _bare(model, place, passes, last=row.endswith("last"), compiled=on_gpu)
    tokens = torch.randint(0, VOCABULARY, (16, batch, length + 1), device=place)
    batches = [(each[:, :-1].contiguous(), each[:, 1:].contiguous()) for each in tokens]

    def step(number: int) -> Any:
        return train([batches[(number * passes + each) % len(batches)] for each in range(passes)])

    for number in range(WARMUP_STEPS):
        loss = step(number)
    if on_gpu:
        device.synchronize()
    begin = time.perf_counter()
    for number in range(steps):
        loss = step(WARMUP_STEPS + number)
    if on_gpu:
        device.synchronize()
    step_s = (time.perf_counter() - begin) / steps
    result = {
        "row": row,
        "step_ms": round(step_s * 1e3, 2),
        "tokens_per_s": round(batch * length * passes * dist.get_world_size() / step_s),
        "peak_gb": round(device.max_memory_allocated() / 1e9, 2) if on_gpu else None,
        "loss": float(loss.detach()),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    }
    dist.destroy_process_group()
    return result


def _model(shape: Mapping[str, Any], device: Any) -> Any:
    import torch
    from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

    from dscampaign.jobs.trainer.model import CAUSAL_SDPA, NextTokenLoss, causal_sdpa

    AttentionInterface.register(CAUSAL_SDPA, causal_sdpa)
    config = AutoConfig.for_model(**shape, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0)
    with torch.device(device):
        bare = AutoModelForCausalLM.from_config(config, attn_implementation=CAUSAL_SDPA, dtype=torch.float32)
    return NextTokenLoss(bare, VOCABULARY)


def _bare(model: Any, device: Any, passes: int, *, last: bool, compiled: bool) -> Callable[[Any], Any]:
    """Return a step of the plain loop, which shares only the model with the trainer."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    blocks = model.model.transformer.h if hasattr(model.model, "transformer") else model.model.model.layers
    for block in blocks:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model.model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=TRAIN["lr"], betas=(TRAIN["beta1"], TRAIN["beta2"]), weight_decay=0.1, fused=True
    )

    def cross_entropy(logits: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    loss_of = torch.compile(cross_entropy) if compiled else cross_entropy

    def step(batches: Any) -> Any:
        for number, (inputs, targets) in enumerate(batches):
            if last:
                model.model.set_requires_gradient_sync(number == passes - 1)
            loss = loss_of(model.model(input_ids=inputs, use_cache=False).logits, targets)
            (loss / passes).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), TRAIN["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def _ours(model: Any, row: str, batch: int, length: int, passes: int, *, compiled: bool) -> Callable[[Any], Any]:
    """Return a step of the trainer."""
    import torch.distributed as dist

    from dscampaign.jobs.shared.ds_config import render
    from dscampaign.jobs.trainer.config import TrainerConfig
    from dscampaign.jobs.trainer.engine import advance, create_engine
    from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig

    sizes = {"micro_batch": batch, "accumulation": passes, "world_size": dist.get_world_size()}
    data = {"model": "gpt2", "dataset": "unused", "seq_len": length, "steps": 1}
    train = {**data, **TRAIN, **OURS[row], "precision": "bf16", "compile": compiled}
    whole = batch * passes * sizes["world_size"]
    run = RunConfig(train=TrainConfig(**train, global_batch=whole, micro_batch=batch))
    config = TrainerConfig.from_json(json.dumps(run.train_json(**sizes)))
    engine = create_engine(model, config, render(asdict(config), **sizes, overrides={}))

    def step(batches: Any) -> Any:
        for inputs, targets in batches:
            loss = engine(inputs, targets)
            advance(engine, loss)
        return loss

    return step


def _in_processes(asked: argparse.Namespace, row: str) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(asked.gpus), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, __file__, "--row", row, "--steps", str(asked.steps), "--model", asked.model]
    command += ["--passes", str(asked.passes)]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(asked.gpus)
    ]
    try:
        output, errors = ranks[0].communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"row": row, "error": [f"took longer than {LIMIT_S} s"]}
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if ranks[0].returncode:
        return {"row": row, "error": errors.strip().splitlines()[-5:]}
    result: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return result


def main() -> None:
    """Measure all rows, and print medians beside the plain loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="gpt2")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--passes", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=("bare", "bare-last", "each", "last"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.row:
        print(json.dumps(measure(asked.model, asked.row, asked.passes, asked.steps)))
        return
    packages = {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    settings = {name: getattr(asked, name) for name in ("model", "gpus", "passes", "steps")}
    document: dict[str, Any] = {"commit": commit_id(), "packages": packages, **settings, "runs": []}
    for _ in range(asked.repeats):
        for row in asked.rows:
            document["runs"].append(_in_processes(asked, row))
            print(document["runs"][-1], flush=True)
            write_json(asked.out, document)
    times = {
        row: [run["step_ms"] for run in document["runs"] if run["row"] == row and "step_ms" in run] for row in ROWS
    }
    for row, measured in ((row, measured) for row, measured in times.items() if measured):
        middle = statistics.median(measured)
        ratio = f"{statistics.median(times['bare']) / middle:.3f} x bare's speed" if times["bare"] else ""
        print(f"{row:10} {middle:7.1f} ms a step ({', '.join(f'{each:.1f}' for each in measured)})  {ratio}")


if __name__ == "__main__":
    main()
