"""Judges running attempts: do they hang, are they hopeless by the spec's bounds, which ranks are stragglers? Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

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
STRAGGLES: Final = 1.3
"""How much longer than the median rank a straggler computes. Ranks of one model on like GPUs differ
by a few percent; a GPU that throttles or shares its node with somebody loses a third and more."""

STRAGGLER_SAMPLES: Final = 16
STRAGGLER_EXCESS_MS: Final = 2.0  # ignores the scheduler's share of a process's time
NAMED_RANKS: Final = 8


class Straggler(NamedTuple):
    """A rank that computes longer than the others; `ratio` is its time over that of the median rank."""

    rank: int
    host: str
    ratio: float


class _Placed(NamedTuple):
    rank: int
    host: str
    progress: RankProgress


def hang(
    heartbeats: Sequence[Heartbeat], p99_step_s: float | None, steps_known: int, *, factor: float, floor_s: float
) -> str | None:
    """Return why the attempt is taken to hang, or None.

    It hangs when no rank of any node has moved for `factor` steps (0: never), or `floor_s`, and all of them train.
    Below ``KNOWN_STEPS`` of `steps_known` more patience is needed. Nodes whose ranks leave no records do not count.
    """
    idle_s = min((beat.idle_s for beat in heartbeats if beat.idle_s is not None), default=None)
    if idle_s is None or p99_step_s is None or not factor:
        return None
    ranks = _ranks(heartbeats)
    floor_s *= 1 if steps_known >= KNOWN_STEPS else FEW_STEPS_FACTOR
    if idle_s < max(floor_s, factor * p99_step_s) or any(rank.progress.phase != TRAINING for rank in ranks):
        return None
    return f"no step for {idle_s:.0f} s (p99 of a step: {p99_step_s:.2g} s); {_positions(ranks)}"


def stragglers(heartbeats: Sequence[Heartbeat]) -> list[Straggler]:
    """Return the ranks that compute longer than the median rank before they wait for the others, the slowest first."""
    measured = [rank for rank in _ranks(heartbeats) if rank.progress.samples >= STRAGGLER_SAMPLES]
    if len(measured) < 2:
        return []
    usual_ms = sorted(rank.progress.busy_ms for rank in measured)[(len(measured) - 1) // 2]
    slow = [
        rank for rank in measured if rank.progress.busy_ms > max(STRAGGLES * usual_ms, usual_ms + STRAGGLER_EXCESS_MS)
    ]
    slowest = (Straggler(rank.rank, rank.host, round(rank.progress.busy_ms / max(usual_ms, 1e-3), 2)) for rank in slow)
    return sorted(slowest, key=lambda straggler: -straggler.ratio)


def _ranks(heartbeats: Sequence[Heartbeat]) -> list[_Placed]:
    placed = (_Placed(rank, beat.host, progress) for beat in heartbeats for rank, progress in beat.ranks.items())
    return sorted(placed, key=lambda rank: rank.rank)


def _positions(ranks: Sequence[_Placed]) -> str:
    steps = sorted({rank.progress.step for rank in ranks})
    if len(steps) == 1:
        who = "the only rank is stuck" if len(ranks) == 1 else f"all {len(ranks)} ranks are stuck"
        return f"{who} at step {steps[0]}"
    behind = [rank for rank in ranks if rank.progress.step == steps[0]]
    verb = "is stuck" if len(behind) == 1 else "are stuck"
    others = str(steps[1]) if len(steps) == 2 else f"{steps[1]} to {steps[-1]}"
    return f"{_names(behind)} {verb} at step {steps[0]}, the others at {others}"


def _names(ranks: Sequence[_Placed]) -> str:
    names = [f"{rank.rank} on {rank.host}" if rank.host else str(rank.rank) for rank in ranks[:NAMED_RANKS]]
    more = f" and {len(ranks) - NAMED_RANKS} more" if len(ranks) > NAMED_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(names)}{more}"


def hopeless(lines: Sequence[NewestLine], start_step: int, prune: PruneConfig, untimed: int) -> str:
    """Return why an attempt is to end, by its newest metrics, newest first; `untimed` steps have no times."""
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
