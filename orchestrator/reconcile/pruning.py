"""Whether a run that trains is hopeless by the spec's own bounds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from dscampaign.db.metrics import NewestLine
from dscampaign.jobs.shared.divergence import is_real
from dscampaign.orchestrator.spec.retry_section import PruneConfig

LINES: Final = 200
"""The newest of an attempt that are looked at."""

LEAST_STEPS: Final = 20
LEAST_LOSSES: Final = 10
"""Fewer than these prove nothing: a step may be slow for once, and fp16 overflows now and then."""


_MOST_OF_A_LINE: Final = LEAST_STEPS // 2
"""As how many steps a line counts at most: none decides alone, however far ahead it says that it is."""


def hopeless(lines: Sequence[NewestLine], start_step: int, prune: PruneConfig, untimed: int) -> str:
    """Why an attempt is to end, "" for nothing.

    Args:
        lines: its newest metrics, the newest first.
        start_step: that it began from.
        prune: the spec's bounds.
        untimed: steps of each attempt whose times do not count.
    """
    losses = [(line.step, is_real(line.loss, line.grad_norm)) for line in lines if line.loss is not None][:LEAST_LOSSES]
    if prune.not_finite and len(losses) == LEAST_LOSSES and not any(real for _, real in losses):
        return f"the loss is not finite from step {losses[-1][0]:,} to step {losses[0][0]:,}"
    warm = [line for line in lines if line.time_s is not None and line.step - line.steps >= start_step + untimed]
    counted = ((line.time_s, min(line.steps, _MOST_OF_A_LINE)) for line in warm)
    times_s = [time_s for time_s, steps in counted for _ in range(steps) if time_s is not None]
    if prune.step_time_s is None or len(times_s) < LEAST_STEPS:
        return ""
    if (median_s := statistics.median(times_s)) <= prune.step_time_s:
        return ""
    return f"a step takes {median_s:.3g} s, longer than prune.step_time_s = {prune.step_time_s:g}"
