"""What a rank needs of its GPU, told before the first step: an attempt that runs out of memory has then said it too.

Memory is `a + b x micro_batch`. `b` is measured, with the real model on a few random samples; of `a`, what is there
already is measured, and what training adds in its first steps is counted. Figures are what tensors take, not what the
allocator holds: that also depends on what came before, and near the limit it gives back what it does not need.
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
"""Samples. The difference between two sizes leaves out what does not depend on them."""


def report_memory(engine: Engine, config: TrainerConfig, job: Job) -> None:
    """Reports event ``memory`` of the rank that needs the most, and of the one that can use the least.

    All ranks call it, when the engine is complete and no step has been made. What one of them cannot measure is left
    out: training does not depend on it.
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
    found = {"after_init_gb": worst[0], "per_sample_gb": worst[1], "usable_gb": usable}
    known = {name: float(value) for name, value in found.items() if torch.isfinite(value)}
    report.event("memory", micro_batch=config.micro_batch, **known, **memory.place(device))


def _needs(engine: Engine, config: TrainerConfig, job: Job) -> tuple[float | None, float | None]:
    """What this rank needs, in GB; None for what is not known.

    Whatever the micro-batch (weights, gradients, optimizer states, buffers), and for each sample of one.
    """
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
    """What this measures; None, and a line in the log, where it cannot: the training will say so itself if it fails.

    The line does not say what the error says, which would read in the log as what ended the training.
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
    """Whether one pass through the bare module takes what a pass through the engine takes, and changes nothing.

    With the fused loss a few samples are less than what it works on at a time, and say nothing of many. Ranks
    that have the same samples would have to pass through the model together, and each decides by itself.
    """
    converted = getattr(engine, "torch_autocast_enabled", lambda: False)()
    as_it_is = not (config.compile or config.deepcompile or config.fused_loss or converted)
    return as_it_is and config.ranks_per_sample == 1 and engine.zero_optimization_stage() <= 2


# -- what a sample takes ---------------------------------------------------------------------------------------


def sample_cost_gb(peak_gb: Callable[[int], float], room_gb: float) -> float:
    """What one more sample of a micro-batch takes, in GB.

    Args:
        peak_gb: passes so many samples through the model and tells what that took.
        room_gb: what it may take at most.
    """
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
    """Goes forward and back through the model with random tokens, and leaves no trace but the peak of its memory.

    Gradients are asked for of the embedded tokens, not of the parameters: those get none, so that nothing which
    DeepSpeed has hung on their gradients notices.
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
    """What training adds on the device in its first steps whatever the micro-batch, beside what is there already.

    Gradients, the buffers in which ZeRO 1 and 2 reduce them, and the states that an optimizer makes at its first step.
    """
    return _gradient_bytes(engine) + _bucket_bytes(engine) + _state_bytes(engine)


def _gradient_bytes(engine: Any) -> int:
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    whole = sum(_bytes(p, whole_shape(p).numel()) for p in parameters)
    if engine.zero_optimization_stage() >= 2:
        return 0 if _states_on_host(engine) else whole // getattr(engine, "dp_world_size", dist.get_world_size())
    return whole


def _bucket_bytes(engine: Any) -> int:
    if engine.zero_optimization_stage() not in (1, 2) or not engine.zero_contiguous_gradients():
        return 0
    buffers = 2 if engine.zero_overlap_comm() else 1
    return int(engine.zero_reduce_bucket_size() * next(engine.module.parameters()).element_size() * buffers)


def _state_bytes(engine: Any) -> int:
    """Two numbers for each weight that Adam and the like update here, one for other optimizers."""
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    copies = 2 if any(name in type(optimizer).__name__.lower() for name in ("adam", "lamb")) else 1
    updated = [p for group in optimizer.param_groups for p in group["params"] if p.device.type == "cuda"]
    return sum(copies * _bytes(p, _part(p).numel()) for p in updated if not optimizer.state.get(p))


def _states_on_host(engine: Any) -> bool:
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"])


def _bytes(tensor: Tensor, numbers: int) -> int:
    return numbers * tensor.element_size()


def _part(parameter: Any) -> Tensor:
    part: Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return part
