"""The training loop: an attempt of a run, on this rank; and the loss on held-out text."""

from __future__ import annotations

import gc
import json
import math
import os
import time
from dataclasses import asdict
from importlib.metadata import version

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

from dscampaign.jobs import report
from dscampaign.jobs.shared import allocator, checkpoint_retention
from dscampaign.jobs.shared.nvml import driver_version

from . import swap_space
from .config import Job, TrainerConfig
from .data import Data, Samples, load
from .engine import (
    Engine,
    advance,
    build_operators,
    create_engine,
    from_first_rank,
    loss_scaling,
    patches,
    set_learning_rate,
    start_process_group,
)
from .fused_loss import IGNORED_TARGET
from .memory import place, report_usable
from .meter import Meter, Profile
from .model import build_model
from .sampling import evaluation_batches, training_batches
from .saving import restore, save
from .search import search

_WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH, SDPBackend.OVERRIDEABLE]
"""Attention of evaluations. Without gradients cuDNN's gives no statistics, and compiled code that expects them ends
with a TypeError (PyTorch 2.11)."""


def main() -> None:
    """Train by the environment's configuration to the target step or a stop. Raises FloatingPointError, ValueError."""
    begin_s = time.perf_counter()
    job = Job.from_environment()
    config = TrainerConfig.from_json(job.train_config.read_text())
    device = start_process_group(job)
    data = load(config, job.data_dir, prepare=job.rank == 0, share=from_first_rank)
    steps = target_step(config, data)
    if config.steps is None:
        report.event("target", steps=steps)
    ds_config = swap_space.apart(json.loads(job.ds_config.read_text()), job)
    build_operators(config, ds_config)  # before the model: under ZeRO-Infinity its weights go to the disk at once
    model, facts = build_model(config, data, ds_config)
    engine = create_engine(model, config, ds_config)
    if config.search:
        search(engine, model, config, job)
        return
    first, reported, rated = restore(engine, job)
    report_usable(config, job, engine.device)
    if job.rank == 0:
        checkpoint_retention.remove_drafts(job.checkpoint_dir, job.generation)
    report.event(
        "start",
        step=first,
        setup_s=time.perf_counter() - begin_s,
        steps_per_epoch=len(data.train) / config.global_batch,
        **asdict(facts),
        **_software(device, config),
    )
    behind = 0 < first < steps and _due(first, config.eval_every, steps) and not rated
    if (behind or first == steps) and reported:
        report.report(first, **reported)  # of each step the newest attempt's line counts
    if behind:  # the attempt before ended between saving and evaluating
        evaluate(engine, data.held_out, config, job, first)
    train(engine, config, job, data, range(first + 1, steps + 1), facts.flops_per_token)
    if swap_space.in_use(ds_config):
        dist.barrier()
        swap_space.clear(job)


def train(engine: Engine, config: TrainerConfig, job: Job, data: Data, steps: range, flops_per_token: float) -> None:
    """Does the optimizer steps ``steps`` and the final evaluation; leaves earlier, with a checkpoint, if asked to."""
    step, target = steps.start - 1, steps.stop - 1
    # DeepSpeed 0.19.8 cannot take states on a disk up again: such a run begins anew
    resumable = not swap_space.in_use(json.loads(job.ds_config.read_text()))
    meter = Meter(config, engine.device, steps, flops_per_token)
    profile = Profile(config, job.attempt_dir, engine.device, meter)
    batches = training_batches(data.train, config, job, steps, engine.device)
    gc.collect()
    gc.freeze()  # a full collection over all of a framework's objects would stall one rank, and so all
    report.phase("compile")  # the first step compiles, allocates and connects
    for step in steps:
        profile.before(step)
        rate = learning_rate(config, step, target)
        set_learning_rate(engine, rate)
        if config.dropout:  # by the step, so that a resumed run drops the same units as an uninterrupted run
            torch.manual_seed(hash((config.seed, step, job.rank)) % 2**63)
        for _ in range(config.accumulation):
            with meter.waiting():
                batch = next(batches)
            with meter.own_share(step):
                loss = engine(*batch)
            norm = advance(engine, loss)
            meter.add(loss)
        meter.close(step, rate, norm, loss_scaling(engine) if config.precision == "fp16" else {})
        report.phase("train")
        stopping = meter.stop_agreed and step < target
        profile.after(step, last=stopping or step == target)
        if (stopping and resumable) or _due(step, config.checkpoint_every, target):
            meter.flush()
            with report.phase("checkpoint"):
                save(engine, config, job, step, meter.reported)
            meter.restart_clock()
        if stopping:
            break
        if step < target and _due(step, config.eval_every, target):
            meter.flush()
            evaluate(engine, data.held_out, config, job, step)
            meter.restart_clock()
    meter.flush()
    meter.finish()
    if step == target:
        evaluate(engine, data.held_out, config, job, step)


def evaluate(engine: Engine, held_out: Samples, config: TrainerConfig, job: Job, step: int) -> None:
    """Report ``eval_loss`` (nats per token, over all ranks) and ``eval_ppl`` for ``step``; nothing without text."""
    if not len(held_out):
        return
    sums = torch.zeros(2, dtype=torch.float64, device=engine.device)
    engine.train(mode=False)
    with report.phase("eval"), torch.no_grad(), sdpa_kernel(_WITHOUT_CUDNN):
        for inputs, targets in evaluation_batches(held_out, config, job, engine.device):
            count = (targets != IGNORED_TARGET).sum()
            loss = engine(inputs, targets).double()
            sums += torch.stack([torch.where(count > 0, loss * count, 0.0), count])
        dist.all_reduce(sums)
        loss_sum, token_count = sums.tolist()
    engine.train()
    loss = loss_sum / token_count
    report.report(step, eval_loss=loss, eval_ppl=math.exp(min(loss, 700.0)))
    if job.rank == 0 and checkpoint_retention.rate(job.checkpoint_dir, step, loss) and config.keep_best:
        checkpoint_retention.prune(job.checkpoint_dir, config.keep_checkpoints, step, keep_best=True)


def target_step(config: TrainerConfig, data: Data) -> int:
    """The run's number of optimizer steps: ``steps``, or the whole batches in ``epochs``, at least 1."""
    if config.steps is not None:
        return config.steps
    return max(1, int((config.epochs or 1.0) * len(data.train)) // config.global_batch)


def _due(step: int, every: int | None, target: int) -> bool:
    return every is not None and (step % every == 0 or step == target)


def learning_rate(config: TrainerConfig, step: int, steps: int) -> float:
    """Return the rate of optimizer step ``step`` of ``steps``, or of ``config.schedule_steps``: a resumed run's too.

    Rises linearly over the warm-up (its last step has the full rate), then follows the schedule down towards
    ``min_lr_ratio * lr``, which the step after the last would have: no step of the run is spent at rate 0.
    """
    steps = max(steps, config.schedule_steps or 0)
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    peak, floor = max(1, config.warmup_steps), config.min_lr_ratio
    progress = (step - peak) / (steps - peak + 1)
    decays = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return config.lr * (floor + (1.0 - floor) * decays[config.schedule])


def _software(device: torch.device, config: TrainerConfig) -> dict[str, str]:
    names = ["deepspeed", "transformers", *(["torchao"] if config.precision == "fp8" else [])]
    facts = {**place(device), **{name: version(name) for name in names}}
    if config.engine == "deepspeed":
        facts["patches"] = patches(config)
    if device.type == "cuda":
        cuda = torch.version.cuda or ""
        facts |= {"cuda": cuda, "driver": driver_version(), "allocator": allocator.setting(os.environ)}
    return facts
