"""Rank conditions by speed, loss and need of memory. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .baseline import BaselineComparison, compare_losses, compare_speeds
from .statistics import TIE, Standing, estimate


def fastest_of(left: Sequence[BaselineComparison]) -> BaselineComparison:
    """Return the condition to use of all that no other is faster than: ties are not transitive.

    A condition that is proven to learn better than the thriftiest of them comes first: it costs no speed.
    """
    able = [one for one in left if not any(faster(other, one) for other in left)]
    able = [one for one in able if not may_be_worse(one)] or able

    def thriftiest(some: Sequence[BaselineComparison]) -> BaselineComparison:
        return min(some, key=lambda one: (*_thrift(one), -pace(one)))

    return thriftiest(best_learners(able, thriftiest(able)))


def best_learners(left: Sequence[BaselineComparison], fastest: BaselineComparison) -> list[BaselineComparison]:
    """Return conditions that learn better than the fastest and no worse than the best of them; else all."""
    better = [one for one in left if compare_losses(one, fastest).verdict == Standing.BETTER]
    if not better:
        return list(left)
    best = min(better, key=median_loss)
    return [one for one in better if not learns_worse(one, best)]


def learns_as_well(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Return whether that is shown."""
    return compare_losses(one, other).verdict == Standing.EQUAL


def learns_worse(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Return whether that is proven."""
    return compare_losses(one, other).verdict == Standing.WORSE


def is_unclear(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Return whether it may learn better than the other, as well or worse, as far as is known."""
    return not learns_worse(one, other) and not learns_as_well(one, other)


def may_be_worse(one: BaselineComparison) -> bool:
    """Return whether it has the repeats, and yet they do not show that it learns as well as the baseline."""
    difference = one.loss.difference
    return bool(difference and difference.low is not None) and not one.loss.no_worse


def median_loss(one: BaselineComparison) -> float:
    """Return the median loss in nats over its repeats; infinite if unknown."""
    found = estimate([loss for _, loss in one.losses])
    return found.value if found else math.inf


def pace(one: BaselineComparison) -> float:
    """Return its speed, or its score by an objective; 0 if no step was timed."""
    return one.speed.value if one.speed else 0.0


def faster(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Return whether it is faster, or looks faster while nothing is proven."""
    if pace(one) <= pace(other) or (pace(other) and pace(one) / pace(other) - 1.0 < TIE):
        return False
    found = compare_speeds(one, other)
    if found != Standing.NOT_PROVEN:
        return found == Standing.FASTER
    return pace(one) * (1.0 - TIE) >= pace(other)


def needs_least(chosen: BaselineComparison, tied: Sequence[BaselineComparison]) -> bool:
    """Return whether it takes less memory than each of these; ties are not transitive, so another may take less."""
    own, others = _reserved(chosen), [_reserved(one) for one in tied]
    return own is not None and all(other is not None and own < other for other in others)


def _reserved(one: BaselineComparison) -> float | None:
    return one.condition.value("mem_reserved_gb")


def _thrift(one: BaselineComparison) -> tuple[float, int, float]:
    memory, energy = (one.condition.value(metric) for metric in ("mem_reserved_gb", "j_per_token"))
    stage = 3 if one.condition.field("engine") == "fsdp2" else one.condition.field("zero_stage")
    rough = math.inf if memory is None else round(memory, 1)
    return rough, stage if isinstance(stage, int) else 0, math.inf if energy is None else energy
