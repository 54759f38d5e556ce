"""Judges running attempts: do they hang, are they hopeless by the spec's bounds? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from dscampaign.db.metrics import NewestLine
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.jobs.shared.divergence import is_real
from dscampaign.orchestrator.spec.sections import PruneConfig

LINES: Final = 200  # the newest of an attempt that are looked at
# Fewer than these prove nothing: a step may be slow for once, and fp16 overflows now and then.
LEAST_STEPS: Final = 20
LEAST_LOSSES: Final = 10
_MOST_OF_A_LINE: Final = LEAST_STEPS // 2
"""As how many steps a line counts at most: none decides alone, however far ahead it is."""

KNOWN_STEPS: Final = 20  # steps whose time must be known before a step counts as long
FEW_STEPS_FACTOR: Final = 6  # how many times longer to wait while fewer are known: an hour unless the spec sets it
TRAINING: Final = "train"  # the only phase in which a long time without a step means anything
NAMED_RANKS: Final = 8


def hang(
    heartbeats: Sequence[Heartbeat], p99_step_s: float | None, steps_known: int, *, factor: float, floor_s: float
) -> str:
    """Return why the attempt is taken to hang, "" if it is not.

    It hangs when no rank of any node has moved for `factor` steps (0: never), or `floor_s`, and all of them train.
    Below ``KNOWN_STEPS`` of `steps_known` more patience is needed. Nodes whose ranks leave no records do not count.
    """
    idle_s = min((beat.idle_s for beat in heartbeats if beat.idle_s is not None), default=None)
    if idle_s is None or p99_step_s is None or not factor:
        return ""
    floor_s *= 1 if steps_known >= KNOWN_STEPS else FEW_STEPS_FACTOR
    ranks = _ranks(heartbeats)
    if idle_s < max(floor_s, factor * p99_step_s) or any(progress.phase != TRAINING for _, progress in ranks):
        return ""
    steps = sorted({progress.step for _, progress in ranks})
    behind = [name for name, progress in ranks if progress.step == steps[0]]
    are = "is" if len(behind) == 1 else "are"
    more = f" and {len(behind) - NAMED_RANKS} more" if len(behind) > NAMED_RANKS else ""
    stuck = f"{', '.join(behind[:NAMED_RANKS])}{more} {are} stuck at step {steps[0]}" if steps else "no rank reports"
    others = f", the others at {steps[-1]}" if len(steps) > 1 else ""
    return f"no step for {idle_s:.0f} s (p99 of a step: {p99_step_s:.2g} s); {stuck}{others}"


def _ranks(heartbeats: Sequence[Heartbeat]) -> list[tuple[str, RankProgress]]:
    ranks = [(rank, beat.host, progress) for beat in heartbeats for rank, progress in beat.ranks.items()]
    ranks.sort(key=itemgetter(0))
    return [(f"rank {rank} on {host}" if host else f"rank {rank}", progress) for rank, host, progress in ranks]


def hopeless(lines: Sequence[NewestLine], start_step: int, prune: PruneConfig, untimed: int) -> str:
    """Return why an attempt is to end, by its newest metrics, newest first; `untimed` steps have no times."""
    losses = [(line.step, is_real(line.loss, line.grad_norm)) for line in lines if line.loss is not None][:LEAST_LOSSES]
    if prune.not_finite and len(losses) == LEAST_LOSSES and not any(real for _, real in losses):
        return f"the loss is not finite from step {losses[-1][0]:,} to step {losses[0][0]:,}"
    warm = [line for line in lines if line.time_s is not None and line.step - line.steps >= start_step + untimed]
    counted = ((line.time_s, min(line.steps, _MOST_OF_A_LINE)) for line in warm)
    times_s = [time_s for time_s, steps in counted for _ in range(steps) if time_s is not None]
    bound_s = prune.step_time_s
    if bound_s is None or len(times_s) < LEAST_STEPS or (median_s := statistics.median(times_s)) <= bound_s:
        return ""
    return f"a step takes {median_s:.3g} s, longer than prune.step_time_s = {bound_s:g}"
