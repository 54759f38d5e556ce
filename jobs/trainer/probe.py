"""The GPU memory of a rank, reported before the first step: `a + b x micro_batch`, of tensors alone.

`b` is measured with the real model on a few random samples; what training adds to `a` is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from dscampaign.jobs import report

from . import memory
from .config import Job, TrainerConfig
from .engine import Engine
from .model import NextTokenLoss, whole_shape

LARGEST_PROBE = 8
"""Samples. The difference between two sizes leaves out all that does not depend on them."""


def report_memory(engine: Engine, config: TrainerConfig, job: Job) -> None:
    """Report event ``memory``: the largest need and the smallest usable memory of all ranks.

    All ranks call it before the first step. A figure that a rank cannot measure is left out.
    """
    device = engine.device
    unknown = float("inf")
    figures = [unknown if figure is None else figure for figure in _needs(engine, config, job)]
    worst = torch.tensor(figures, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    # after the first collective, which allocates what communication needs
    usable_gb = _measured(lambda: memory.usable_gb(device, job.gpu_mem_bytes) or unknown)
    usable = torch.tensor(-unknown if usable_gb is None else usable_gb, device=device)
    dist.all_reduce(usable, dist.ReduceOp.MIN)
    sizes = {"after_init_gb": worst[0], "per_sample_gb": worst[1], "usable_gb": usable}
    finite = {name: float(value) for name, value in sizes.items() if torch.isfinite(value)}
    report.event("memory", micro_batch=config.micro_batch, **finite, **memory.place(device))


def _needs(engine: Engine, config: TrainerConfig, job: Job) -> tuple[float | None, float | None]:
    """Return this rank's memory in GB without samples, and the cost of each; None for unknown parts."""
    device = engine.device
    if device.type != "cuda":
        return _measured(lambda: memory.current_gb(device)), None
    base_gb = _measured(lambda: memory.current_gb(device) + to_come_bytes(engine) / memory.GB)
    if base_gb is None or job.resume is not None:
        return base_gb, None
    sample_gb = _measured(lambda: _sample_gb(engine, config, job))
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return base_gb, sample_gb


def _measured(measure: Callable[[], float | None]) -> float | None:
    """Return the measurement, or None and a line in the log if it fails: the training itself will report a failure.

    The line leaves out the error's text, which could be read as the end of the training.
    """
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - whatever a model or a version of DeepSpeed does not take
        print(f"warning: memory could not be measured beforehand ({type(error).__name__})", file=sys.stderr)
        return None


def _sample_gb(engine: Engine, config: TrainerConfig, job: Job) -> float | None:
    if not _can_probe(engine, config):
        return None
    device = engine.device
    room_gb = (memory.usable_gb(device, job.gpu_mem_bytes) or 0.0) - memory.current_gb(device)
    return sample_cost_gb(
        lambda samples: _peak_gb(cast(NextTokenLoss, engine.module), samples, config.seq_len, device), room_gb
    )


def _can_probe(engine: Any, config: TrainerConfig) -> bool:
    """Return whether a pass through the bare module takes the memory of a pass through the engine, and changes nothing.

    The fused loss works on more than a few samples at a time. Ranks that share samples would have to pass together.
    """
    converted = getattr(engine, "torch_autocast_enabled", lambda: False)()
    as_it_is = not (config.compile or config.deepcompile or config.fused_loss or converted)
    return as_it_is and config.ranks_per_sample == 1 and engine.zero_optimization_stage() <= 2


# -- what a sample takes ---------------------------------------------------------------------------------------


def sample_cost_gb(peak_gb: Callable[[int], float], room_gb: float) -> float:
    """Return the memory of one more sample of a micro-batch, in GB; ``peak_gb`` passes some through the model."""
    peak_gb(1)  # the first pass of a process also allocates what its libraries keep
    one_gb = peak_gb(1)
    larger = LARGEST_PROBE
    while larger > 1 and larger * one_gb > room_gb:
        larger //= 2
    if larger == 1:
        return one_gb
    smaller_gb = one_gb if larger == 2 else peak_gb(larger // 2)
    return (peak_gb(larger) - smaller_gb) / (larger - larger // 2)


def _peak_gb(model: NextTokenLoss, samples: int, seq_len: int, device: torch.device) -> float:
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    pass_through(model, samples, seq_len, device)
    return (torch.cuda.max_memory_allocated(device) - before) / memory.GB


def pass_through(model: NextTokenLoss, samples: int, seq_len: int, device: torch.device) -> None:
    """Run both passes of the model with random tokens; only the peak of memory changes.

    Gradients are computed for the embedded tokens, not for the parameters, so that DeepSpeed's hooks do not run.
    """
    embedded: list[Tensor] = []

    def keep(_module: object, _inputs: object, output: Tensor) -> None:
        embedded.append(output if output.requires_grad else output.requires_grad_())

    hook = model.model.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            tokens = torch.randint(model.vocab_size, (samples, seq_len), device=device)
            loss = model.forward(tokens, tokens)  # not a call: DeepSpeed's timers and profilers would begin
            torch.autograd.grad(loss, embedded)
    finally:
        hook.remove()


# -- what training adds ----------------------------------------------------------------------------------------


def to_come_bytes(engine: Any) -> int:
    """Return the bytes of gradients, buckets and states that training adds in its first steps at any micro-batch."""
    return _gradient_bytes(engine) + _bucket_bytes(engine) + _state_bytes(engine)


def _gradient_bytes(engine: Any) -> int:
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    whole: int = sum(whole_shape(p).numel() * p.element_size() for p in parameters)
    if engine.zero_optimization_stage() >= 2:
        return 0 if _states_on_host(engine) else whole // getattr(engine, "dp_world_size", dist.get_world_size())
    return whole


def _bucket_bytes(engine: Any) -> int:
    if engine.zero_optimization_stage() not in (1, 2) or not engine.zero_contiguous_gradients():
        return 0
    buffers = 2 if engine.zero_overlap_comm() else 1
    return int(engine.zero_reduce_bucket_size() * next(engine.module.parameters()).element_size() * buffers)


def _state_bytes(engine: Any) -> int:
    """Count two numbers for each weight that Adam updates here, a single number for other optimizers."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    copies = 2 if any(name in type(optimizer).__name__.lower() for name in ("adam", "lamb")) else 1
    updated = [p for group in optimizer.param_groups for p in group["params"] if p.device.type == "cuda"]
    parts: list[Tensor] = [p.to_local() if hasattr(p, "to_local") else p for p in updated if not optimizer.state.get(p)]
    return copies * sum(int(part.nbytes) for part in parts)


def _states_on_host(engine: Any) -> bool:
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"])
