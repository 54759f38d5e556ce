"""Times micro-batches in turn, from the configured size up, in a process of its own.

Running out of memory ends the process, too; the measurements until then are written.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from typing import Final

import torch
import torch.distributed as dist

from dscampaign.files.atomic_files import write_atomically
from dscampaign.jobs import report
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.micro_batch_search import SEARCH_PASSES, SizeTrial, next_size

from . import memory
from .config import Job, TrainerConfig
from .engine import Engine, advance
from .model import NextTokenLoss

TIMED: Final = 3  # optimizer steps whose median counts, after a step that allocates and compiles


def search(engine: Engine, model: NextTokenLoss, config: TrainerConfig, job: Job) -> None:
    """Report event ``trial`` for each micro-batch, with the time and memory of a whole optimizer step of the run.

    All ranks call it. Raises RuntimeError, MemoryError: a size did not fit into a rank's memory; that rank has reported
    it.
    """
    plan = config.search
    assert plan is not None
    report.phase("search")
    began_s, trials, size = time.monotonic(), list[SizeTrial](), config.micro_batch
    while True:
        try:
            trial = _tried(engine, model, replace(config, micro_batch=size), job, plan.share)
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error).lower():
                paths = AttemptPaths(job.attempt_dir)
                write_atomically(paths.did_not_fit(job.rank), json.dumps({"micro_batch": size}))
            raise
        trials.append(trial)
        tokens = plan.share * (config.world_size // config.ranks_per_sample) * config.seq_len
        report.event("trial", **vars(trial), tokens=tokens, **memory.place(engine.device))
        following = next_size(plan.share, trials, plan.too_big)
        over = time.monotonic() - began_s > plan.seconds or report.should_stop()
        wanted = torch.tensor(0 if over or following is None else following, device=engine.device)
        dist.all_reduce(wanted, dist.ReduceOp.MIN)  # the smallest size of any rank; 0 if a rank wants to stop
        if not (size := int(wanted)):
            return


def _tried(engine: Engine, model: NextTokenLoss, config: TrainerConfig, job: Job, share: int) -> SizeTrial:
    """Time one size: the slowest rank's times, the fullest rank's memory.

    Each size is compiled anew, as in the training that follows: a second size would be compiled for any.
    """
    device = engine.device
    if not config.deepcompile:
        torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    tokens = torch.randint(model.vocab_size, (config.micro_batch, config.part_len), device=device)
    times = [_step(engine, tokens) for _ in range(TIMED + 1)][1:]
    one_s, last_s = (statistics.median(values) for values in zip(*times, strict=True))
    held_gb = memory.limited_peak_gb(device) if device.type != "cuda" else memory.peak(device).reserved_gb
    usable_gb = memory.usable_gb(device, job.gpu_mem_bytes)
    known = -1.0 if held_gb is None else held_gb, 1.0 if usable_gb is None else -usable_gb
    figures = torch.tensor([one_s, last_s, *known], device=device)
    dist.all_reduce(figures, dist.ReduceOp.MAX)
    one_s, last_s, held, minus_room = figures.tolist()
    step_s = (share // config.micro_batch - 1) * one_s + last_s
    return SizeTrial(config.micro_batch, step_s, None if held < 0 else held, None if minus_room > 0 else -minus_room)


def _step(engine: Engine, tokens: torch.Tensor) -> tuple[float, float]:
    marks = [_now(engine.device)]
    for _ in range(SEARCH_PASSES):
        advance(engine, engine(tokens, tokens))
        marks.append(_now(engine.device))
    return marks[1] - marks[0], marks[2] - marks[1]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
