"""Which conditions a figure draws, and what its caption says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..compare.baseline import BaselineComparison
from ..compare.conditions import Condition
from ..compare.results import Results, WorkloadResults
from ..compare.wording import listed
from ..measure.run import MeasuredRun
from .elements import Picture

MOST_CURVES: Final = 12
"""So many conditions have a colour of their own."""

MOST_BARS: Final = 24
"""So many are told apart by their place; those without a colour of their own are grey."""

MOST_WORKLOADS: Final = 8
"""So many workloads have figures; who has more reads the tables."""

MOST_SAMPLED: Final = 3
"""So many runs have their GPUs drawn over time."""

_LISTED: Final = 24


@dataclass(frozen=True)
class _Kind:
    """A kind of figure: whether there are data to draw a condition beside the baseline, and how many it draws."""

    shows: Callable[[BaselineComparison, Condition], bool]
    most: int
    caption: str


def _learns(condition: Condition) -> bool:
    return any(run.curve.drawable for run in condition.runs)


_KINDS: Final = {
    "loss": _Kind(
        lambda one, _: _learns(one.condition),
        MOST_CURVES,
        "Loss by optimizer steps, tokens and time of training: smoothed, of several repeats the mean with a band from "
        "the lowest to the highest; diamonds are on held-out text.",
    ),
    "loss_difference": _Kind(
        lambda one, baseline: not one.is_baseline and _learns(one.condition) and _learns(baseline),
        MOST_CURVES - 1,  # beside the baseline
        "Smoothed loss minus the baseline's at the same step: below 0 is better.",
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
        said = [_KINDS[kind].caption]
        said += [f"Workload: {one.workload.name}."] if one.workload.name else []
        said += [f"Not drawn: {listed(missing, _LISTED)}."] if missing else []
        found.append(Picture(name, " ".join(said)))
    if found and (more := len(results.workloads) - MOST_WORKLOADS) > 0:
        found[-1] = Picture(found[-1].name, f"{found[-1].caption} Workloads without a figure: {more}.")
    return tuple(found)


def named(kind: str, results: Results) -> list[tuple[str, WorkloadResults]]:
    """Name and workload of each figure of this kind that there are data for."""
    several = len(results.workloads) > 1
    each = enumerate(results.workloads[:MOST_WORKLOADS], 1)
    return [(f"{kind}_{number}" if several else kind, one) for number, one in each if drawn(kind, one)]


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
