"""Which conditions a figure draws, and what its caption says. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dscampaign.orchestrator.formatting import some
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.sweeps import sweeps_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun

from .elements import Picture

MOST_CURVES: Final = 12
"""So many conditions have a colour of their own."""

MOST_BARS: Final = 24
"""So many are told apart by their place; those without a colour of their own are grey."""

MOST_WORKLOADS: Final = 8
"""So many workloads have figures; who has more reads the tables."""

FEW_WORKLOADS: Final = 3
_ALONG_AXES: Final = ("step_time", "speed", "memory")
"""Of more workloads these are drawn along the axes that set them apart, not once more for each."""

MOST_SAMPLED: Final = 3
"""So many runs have their GPUs drawn over time."""

_LISTED: Final = 4
_MOSTLY: Final = 0.9
_ROUNDING: Final = 1e-6
"""Losses that differ by a smaller part are the same."""


@dataclass(frozen=True)
class _Kind:
    """A kind of figure: whether there are data to draw a condition beside the baseline, and how many it draws.

    ``worth`` says of those that it would draw, and the baseline, whether they show anything together.
    """

    shows: Callable[[BaselineComparison, Condition], bool]
    most: int
    caption: str
    worth: Callable[[Sequence[Condition], Condition], bool] = lambda shown, _: bool(shown)


def _learns(condition: Condition) -> bool:
    return any(run.curve.drawable for run in condition.runs)


def loss_beside(condition: Condition, baseline: Condition) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps, and there the smoothed loss of a condition minus the baseline's; of repeats the mean."""
    (steps, own), (base_steps, base) = _mean_loss(condition), _mean_loss(baseline)
    return steps, own - np.interp(steps, base_steps, base, left=math.nan, right=math.nan)


def _differ(conditions: Sequence[Condition], baseline: Condition) -> bool:
    """Return whether any loss is farther from the baseline's than rounding: a script may give all runs the same."""
    _, base = _mean_loss(baseline)
    least = _ROUNDING * float(np.nanmax(np.abs(base), initial=0.0))
    return any(bool(np.any(np.abs(loss_beside(each, baseline)[1]) > least)) for each in conditions)


def _mean_loss(condition: Condition) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    curves = [run.curve for run in condition.runs if run.curve.drawable]
    steps = np.asarray(max((curve.step for curve in curves), key=lambda found: found[-1]))
    each = [np.interp(steps, curve.step, curve.smoothed, left=math.nan, right=math.nan) for curve in curves]
    return steps, where_all_are(each).mean(axis=0).filled(math.nan)


def where_all_are(curves: Sequence[NDArray[np.float64]]) -> np.ma.MaskedArray[Any, Any]:
    """The curves where each has a value: a mean over fewer would jump where one ends."""
    together = np.ma.masked_invalid(curves)
    return np.ma.masked_where(np.broadcast_to(together.mask.any(axis=0), together.shape), together)


_KINDS: Final = {
    "speed_memory": _Kind(
        lambda one, _: one.speed is not None and one.condition.value("mem_reserved_gb") is not None,
        MOST_BARS,
        "Speed against memory: up and to the left is better. Bars are intervals over repeats; the grey line joins the "
        "ringed conditions that no other beats in both.",
        lambda shown, _: len(shown) > 1,
    ),
    "loss": _Kind(
        lambda one, _: _learns(one.condition),
        MOST_CURVES,
        "Loss by {axes}: smoothed, of several repeats the mean with a band from the lowest to the highest; diamonds "
        "are on held-out text. Curves that coincide are drawn as dashes by turns.",
    ),
    "loss_difference": _Kind(
        lambda one, baseline: not one.is_baseline and _learns(one.condition) and _learns(baseline),
        MOST_CURVES - 1,  # beside the baseline
        "Smoothed loss minus the baseline's at the same step, of repeats the mean: below 0 is better. Curves that "
        "coincide are drawn as dashes by turns.",
        _differ,
    ),
    "step_time": _Kind(
        lambda one, _: any(run.timing for run in one.condition.counted),
        MOST_BARS,
        "Step times of the middle repeat, of two the slower: quartiles and median; whiskers from the 5th to the 95th "
        "percentile.",
    ),
    "speed": _Kind(lambda one, _: bool(one.speeds), MOST_BARS, "Speed over all ranks: medians; points are repeats."),
    "memory": _Kind(
        lambda one, _: one.condition.value("mem_reserved_gb") is not None, MOST_BARS, "Memory, highest of any rank."
    ),
}


def loss_axes(one: WorkloadResults) -> list[str]:
    """By what the losses of a workload can be drawn."""
    curves = [run.curve for each in drawn("loss", one) for run in each.runs if run.curve.drawable]
    known = {
        "optimizer steps": True,
        "tokens": any(math.isfinite(value) for curve in curves for value in curve.tokens),
        "time of training": any(math.isfinite(value) for curve in curves for value in curve.seconds),
    }
    return [name for name, is_known in known.items() if is_known]


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def drawn(kind: str, one: WorkloadResults) -> list[Condition]:
    """The conditions of a workload that a figure of this kind draws, in the order of the matrix.

    The fastest, the one that learns best and the baseline always, then the first others, as far as there are data.
    """
    baseline, shows = one.workload.baseline, _KINDS[kind].shows
    able = [each.condition for each in one.comparisons if shows(each, baseline)]
    told = (one.recommendation.fastest, one.recommendation.learner, baseline)
    always = [each for each in able if any(each is other for other in told)]
    kept = {each.name for each in [*always, *(each for each in able if each not in always)][: _KINDS[kind].most]}
    return [each for each in able if each.name in kept]


def pictures(kind: str, results: Results) -> tuple[Picture, ...]:
    """The figures of this kind, one for each workload."""
    found = []
    for name, one in named(kind, results):
        there = {each.name for each in drawn(kind, one)}
        if kind == "loss_difference":
            there.add(one.workload.baseline.name)  # the line at 0
        missing = [each.condition.name for each in one.comparisons if each.condition.name not in there]
        said = [_KINDS[kind].caption.format(axes=_joined(loss_axes(one)))]
        said += [f"Workload: {one.workload.name}."] if one.workload.name else []
        said += [f"Not drawn: {some(missing, _LISTED)}."] if missing else []
        found.append(Picture(name, " ".join(said)))
    if found and (more := len(results.workloads) - MOST_WORKLOADS) > 0:
        found[-1] = Picture(found[-1].name, f"{found[-1].caption} Workloads without a figure: {more}.")
    return tuple(found)


def first_of_losses(results: Results) -> str:
    """Which figure of losses is seen first: what curves that coincide hide, where there is anything to see."""
    return "loss_difference" if pictures("loss_difference", results) else "loss"


def named(kind: str, results: Results) -> list[tuple[str, WorkloadResults]]:
    """Name and workload of each figure of this kind that there are data for."""
    several = len(results.workloads) > 1
    if kind in _ALONG_AXES and len(results.workloads) > FEW_WORKLOADS and _are_swept(results):
        return []
    each = enumerate(results.workloads[:MOST_WORKLOADS], 1)
    return [(f"{kind}_{number}" if several else kind, one) for number, one in each if _is_worth_it(kind, one)]


def _are_swept(results: Results) -> bool:
    swept = {
        point.condition.name for sweep in sweeps_of(results.conditions) for line in sweep.lines for point in line.points
    }
    return swept.issuperset(one.name for one in results.conditions)


def _is_worth_it(kind: str, one: WorkloadResults) -> bool:
    shown = drawn(kind, one)
    return bool(shown) and _KINDS[kind].worth(shown, one.workload.baseline)


def front_of(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points (memory, speed) that none with as little memory or less beats, the smallest memory first."""
    kept: list[int] = []
    for place in sorted(range(len(points)), key=lambda each: (points[each][0], -points[each][1])):
        if not kept or points[place][1] > points[kept[-1]][1]:
            kept.append(place)
    return kept


def spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Place as near to the wanted ones as leaves each `apart` from the next; their order stays."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    groups: list[tuple[float, int]] = []  # centre and number
    for place in order:
        centre, number = wanted[place], 1
        while groups and centre - groups[-1][0] < apart * (number + groups[-1][1]) / 2:
            before, count = groups.pop()
            centre, number = (centre * number + before * count) / (number + count), number + count
        groups.append((centre, number))
    placed = [centre + apart * (each - (number - 1) / 2) for centre, number in groups for each in range(number)]
    found = dict(zip(order, placed, strict=True))
    return [found[place] for place in range(len(wanted))]


def sampled_runs(results: Results) -> list[MeasuredRun]:
    """The runs whose GPUs are drawn over time: of the fastest conditions, the baselines, then the first others."""
    fastest = [one.recommendation.fastest for one in results.workloads]
    baselines = [one.workload.baseline for one in results.workloads]
    ordered = {one.name: one for one in (*fastest, *baselines, *results.conditions) if one}
    sampled = (next((run for run in one.runs if run.gpus.names and run.attempt_id), None) for one in ordered.values())
    return [run for run in sampled if run][:MOST_SAMPLED]


def colours_of(one: WorkloadResults, palette: Sequence[str], rest: str) -> dict[str, str]:
    """By name, a condition's colour: the same in all figures of its workload, those of its loss curves first."""
    curves = drawn("loss", one) or drawn("speed", one)[: len(palette)]
    own = {each.name: colour for each, colour in zip(curves, palette, strict=False)}
    return {each.condition.name: own.get(each.condition.name, rest) for each in one.comparisons}


def coinciding(curves: Sequence[NDArray[np.float64]], apart: float) -> list[list[int]]:
    """The places of the curves, those together that cover each other.

    Curves have values at the same places, NaN if there is none. They cover each other where at least nine tenths of
    the values that both have differ by less than ``apart``.
    """
    groups: list[list[int]] = []
    for place, curve in enumerate(curves):
        mine = next((group for group in groups if _coincide(curves[group[0]], curve, apart)), None)
        if mine is None:
            groups.append([place])
        else:
            mine.append(place)
    return groups


def _coincide(one: NDArray[np.float64], other: NDArray[np.float64], apart: float) -> bool:
    difference = np.abs(one - other)
    known = difference[np.isfinite(difference)]
    return bool(known.size) and float(np.mean(known < apart)) >= _MOSTLY
