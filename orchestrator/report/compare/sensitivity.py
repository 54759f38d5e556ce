"""The effect of a change of an axis on speed, memory and loss, over all pairs that differ in it alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, pairwise
from typing import Any, Final

from dscampaign.orchestrator.campaign.titles import value_text
from dscampaign.orchestrator.failures.groups import alike

from .baseline import BaselineComparison, by_block, compare_losses, compare_speeds, times_as_fast
from .conditions import key_of, unlike
from .statistics import Estimate, LossTest, Standing, contrast
from .wording import decimals, interval, loss_gap, times

LEAST_GB: Final = 0.1


@dataclass(frozen=True)
class Sensitivity:
    """A change of an axis, and the pairs of conditions that differ in it alone, each without and with the change."""

    axis: str
    before: object
    after: object
    pairs: tuple[tuple[BaselineComparison, BaselineComparison], ...]

    @property
    def change(self) -> str:
        """The change as text: `zero_stage 1 → 2`."""
        return f"{self.axis} {_text(self.before)} → {_text(self.after)}"

    @cached_property
    def speed(self) -> Estimate | None:
        """The speed with the change as a multiple of that without: of several pairs their geometric mean."""
        timed = [(before, after) for before, after in self.pairs if times_as_fast(after, before)]
        if len(timed) < 2:
            return times_as_fast(timed[0][1], timed[0][0]) if timed else None
        speeds, spent = by_block([one for pair in timed for one in pair])
        weights = cycle((-1.0 / len(timed), 1.0 / len(timed)))
        return contrast(tuple(zip(speeds, weights, strict=False)), among=timed[0][0].among, spent=spent)

    @cached_property
    def memory(self) -> list[float]:
        """The difference in reserved memory of each pair, in GB."""
        both = [[one.condition.value("mem_reserved_gb") for one in pair] for pair in self.pairs]
        return [after - before for before, after in both if before is not None and after is not None]

    @cached_property
    def losses(self) -> list[LossTest]:
        """The test of the losses of each pair."""
        return [compare_losses(after, before) for before, after in self.pairs]

    @cached_property
    def loss(self) -> Estimate | None:
        """The mean difference of the losses over all pairs, with its interval over repeats with the same seed."""
        both = [(dict(before.losses), dict(after.losses)) for before, after in self.pairs]
        shared = set(both[0][0]).intersection(*(losses for pair in both for losses in pair))
        gaps = tuple(sum(after[seed] - before[seed] for before, after in both) / len(both) for seed in sorted(shared))
        return contrast(((gaps, 1.0),), additive=True, among=self.pairs[0][0].among)

    @cached_property
    def proofs(self) -> dict[str, bool]:
        """Whether the effects on speed and on the loss are proven in each pair, if they were measured."""
        orders = [compare_speeds(after, before) for before, after in self.pairs if before.speeds and after.speeds]
        verdicts_of = {"speed": orders, "loss": [test.verdict for test in self.losses if test.difference]}
        return {figure: Standing.NOT_PROVEN not in verdicts for figure, verdicts in verdicts_of.items() if verdicts}

    def document(self) -> dict[str, Any]:
        """Return it as a row of data; differences of memory and of losses are of each pair."""
        return {
            "field": self.axis,
            "before": self.before,
            "after": self.after,
            "pairs": [[before.condition.name, after.condition.name] for before, after in self.pairs],
            "speed": self.speed,
            "proven": self.proofs,
            "mem_reserved_gb": self.memory,
            "loss": self.losses,
        }


def sensitivities(comparisons: Sequence[BaselineComparison]) -> list[Sensitivity]:
    """Return every measured change of an axis of the matrix, on the same devices unless the axis decides on them.

    Numbers go from each value to the next, other values from the first to each.
    """
    measured = [one for one in comparisons if one.speed or one.losses]
    changes: dict[tuple[str, ...], list[tuple[BaselineComparison, BaselineComparison]]] = {}
    for axis in dict.fromkeys(axis for one in measured for axis in one.condition.params if axis != "label"):
        for before, after in _pairs(measured, axis):
            key = (axis, *(key_of(one.condition.params.get(axis)) for one in (before, after)))
            if key[1] != key[2] and not unlike(before.condition, after.condition):
                changes.setdefault(key, []).append((before, after))
    return [
        Sensitivity(axis, pairs[0][0].condition.params.get(axis), pairs[0][1].condition.params.get(axis), tuple(pairs))
        for (axis, *_), pairs in changes.items()
    ]


def _pairs(
    measured: Sequence[BaselineComparison], axis: str
) -> Iterator[tuple[BaselineComparison, BaselineComparison]]:
    """Yield the conditions that differ in this axis alone; a label only names the other settings of a point."""

    def others(one: BaselineComparison) -> str:
        return key_of({name: value for name, value in one.condition.params.items() if name not in (axis, "label")})

    for group in alike(measured, others):
        values: list[Any] = [one.condition.params.get(axis) for one in group]
        if all(isinstance(value, int | float) for value in values):
            yield from pairwise(sorted(group, key=lambda one: one.condition.params[axis]))
        else:
            yield from ((group[0], other) for other in group[1:])


def _text(value: object) -> str:
    if value is None:
        return "unset"
    return ("on" if value else "off") if isinstance(value, bool) else value_text(value)


def speed_effect(change: Sensitivity) -> str:
    """Return `1.20 [1.10, 1.30] × the speed`; of several pairs their mean and range; "" if unknown."""
    if {compare_speeds(after, before) for before, after in change.pairs} == {Standing.EQUAL}:
        return "as fast"
    each = [f"{factor.value:.2f}" for a, b in change.pairs if (factor := times_as_fast(b, a))]
    return f"{times(change.speed)} × the speed{_range(each)}" if change.speed else ""


def _range(each: Sequence[str]) -> str:
    low, high = min(each, key=float), max(each, key=float)
    return f" ({low} to {high})" if low != high else ""


def memory_effect(change: Sensitivity) -> str:
    """Return `+1.2 GB`; "" if unknown."""
    saved = change.memory
    if not saved:
        return ""
    if max(map(abs, saved)) < LEAST_GB:
        return "the same memory"
    low, high = min(saved), max(saved)
    return f"{low:+.1f} GB" if high - low < LEAST_GB else f"{low:+.1f} to {high:+.1f} GB"


def loss_effect(change: Sensitivity) -> str:
    """Return how far the losses are apart; equal if that is shown of every pair."""
    mean = change.loss
    if not mean:
        return ""
    kind, unit = f"{change.pairs[0][0].loss_is} loss", change.pairs[0][0].loss_unit
    if all(test.verdict == Standing.EQUAL for test in change.losses):
        return f"equal {kind}"

    def number(gap: float) -> str:
        return loss_gap(gap, unit, decimals=decimals(mean, 3) if unit else None)

    each = [number(test.difference.value) for test in change.losses if test.difference]
    return f"{kind} {number(mean.value)}{interval(mean, number)}{unit}{_range(each)}"
