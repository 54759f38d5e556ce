"""The loss curves of a workload, thinned to what a page can hold. Pure; needs NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import WorkloadResults

from .looks import OTHERS, Look, Looks

POINTS: Final = 6_000
"""Of all curves of a page."""

_MOST, _LEAST = 160, 12
"""Points of a curve."""


@dataclass(frozen=True)
class Curves:
    """The curves of a workload.

    Attributes:
        rows: by condition `c` and `step`, the mean `loss` over repeats, and their range `low` to `high`.
        held_out: losses on held-out text.
        minutes: of a step, by the condition's number; empty if it is unknown for any.
        thinned_to: points of a curve; 0 if it has all steps.
    """

    rows: Sequence[Mapping[str, Any]]
    held_out: Sequence[Mapping[str, Any]]
    minutes: Mapping[int, float]
    thinned_to: int

    def domain(self, field: str = "loss") -> tuple[float, float]:
        """Return the ends of an axis with room for the curves, but not for their fall in the first steps."""
        every = [(row["step"], row[field]) for row in self.rows if row[field] is not None]
        last = max((step for step, _ in every), default=0.0)
        values = [value for step, value in every if step >= last / 12]
        if not values:
            return 0.0, 0.0
        low, high = min(values), float(np.percentile(values, 99.5))
        if field == "loss":
            farthest = 2 * float(np.percentile([value for _, value in every], 99)) - low
            high = max([high, *(each["loss"] for each in self.held_out if each["loss"] <= farthest)])
        return low - 0.04 * (high - low), high + 0.06 * (high - low)


def curves_of(one: WorkloadResults, looks: Looks, share: float) -> Curves:
    """Return the curves of a workload with its share of the points of a page."""
    drawn = [each.condition for each in one.comparisons if any(run.curve.drawable for run in each.condition.runs)]
    points = int(min(_MOST, max(_LEAST, share * POINTS / max(1, len(drawn)))))
    drawn.sort(key=lambda condition: looks[condition.name].group != OTHERS)  # the colours above the grey
    rows = [row for condition in drawn for row in _rows(condition, looks[condition.name], points)]
    held_out = [row for condition in drawn for row in _held_out(condition, looks[condition.name])]
    minutes = {looks[each.name].number: _seconds_of_a_step(each) / 60 for each in drawn}
    longest = max((run.quality.received for condition in drawn for run in condition.runs), default=0)
    return Curves(rows, held_out, minutes if all(minutes.values()) else {}, points if longest > points else 0)


def _rows(condition: Condition, look: Look, points: int) -> Iterator[Mapping[str, Any]]:
    """Yield steps with the lowest, mean and highest smoothed loss, if all repeats have a loss."""
    curves = [run.curve for run in condition.runs if run.curve.drawable]
    longest = max((curve.step for curve in curves), key=lambda steps: steps[-1])
    steps = np.asarray(longest)[np.unique(np.linspace(0, len(longest) - 1, points).astype(int))]
    each = np.array([np.interp(steps, curve.step, curve.smoothed, left=math.nan, right=math.nan) for curve in curves])
    mean, has_band = each.mean(axis=0), look.group != OTHERS and len(condition.runs) > 1
    low, high = (each.min(axis=0), each.max(axis=0)) if has_band else (mean * math.nan,) * 2
    for values in zip(steps, mean, low, high, strict=True):
        if math.isfinite(values[1]):
            yield {"c": look.number, **dict(zip(("step", "loss", "low", "high"), map(short, values), strict=True))}


def _held_out(condition: Condition, look: Look) -> Iterator[Mapping[str, Any]]:
    for run in condition.runs if look.group != OTHERS else ():
        for step, loss in zip(run.curve.eval_step, run.curve.held_out, strict=True):
            yield {"c": look.number, "step": step, "loss": round(loss, 5)}


def _seconds_of_a_step(condition: Condition) -> float:
    """Return the median over repeats; 0 if unknown."""
    ends = [(run.curve.seconds[-1], run.curve.step[-1]) for run in condition.runs if run.curve.drawable]
    rates = [end / step for end, step in ends if step and math.isfinite(end)]
    return float(np.median(rates)) if rates else 0.0


def short(value: float) -> float | None:
    """Return a number with the digits that a chart can show; None if it is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
