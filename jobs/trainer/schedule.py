"""The learning rate of each optimizer step. Pure, so a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from .config import TrainerConfig


def learning_rate(config: TrainerConfig, step: int, steps: int) -> float:
    """The learning rate of optimizer step ``step`` of ``steps``, or of ``config.schedule_steps``.

    Rises linearly over the warm-up (its last step has the full rate), then follows the schedule down towards
    ``min_lr_ratio * lr``, which the step after the last would have: no step of the run is spent at rate 0.
    """
    steps = max(steps, config.schedule_steps or 0)
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    peak = max(1, config.warmup_steps)
    progress = (step - peak) / (steps - peak + 1)
    floor = config.min_lr_ratio
    return config.lr * (floor + (1.0 - floor) * _decay(config.schedule, progress))


def _decay(schedule: str, progress: float) -> float:
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
