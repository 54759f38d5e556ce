"""The speed of a run: the window of its steps that count, after the warm-up of each attempt. Pure; needs NumPy.

A line of metrics counts for each step that it stands for, but for no more than lines usually do, so that a lost line is
missed. Without step times, the time of a step is that between two lines which are far enough apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dscampaign.db.records import WARM_UP_STEPS, warm_up_steps
from dscampaign.db.series import Series

LEAST_STEPS: Final = 100
LEAST_S: Final = 20.0
"""Figures of a window of fewer steps, or of less time, are flagged."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Timing:
    """A run's speed over all of its attempts, without their warm-up.

    Attributes:
        step_s, p99_s, mean_s, std_s: median time of an optimizer step, 99th percentile, mean and standard deviation.
        tokens_per_s: all tokens of the window by all its time, over all ranks; None if unknown.
        mfu: mean over the window's time, from 0 to 1; None if unknown.
        steps, window_s: steps that count, and their time; the warm-up does not.
        by_clock: the script does not report step times: they are times between lines.
        clock_error: relative error of a step's time in this case; 0 if lines have the time at which they were written.
    """

    step_s: float
    p99_s: float
    mean_s: float
    std_s: float
    tokens_per_s: float | None
    mfu: float | None
    steps: int
    window_s: float
    warm_up_steps: int
    warm_up_s: float
    by_clock: bool
    clock_error: float = 0.0

    @property
    def short(self) -> bool:
        """Whether the window is too short to rely on."""
        return self.steps < LEAST_STEPS or self.window_s < LEAST_S


@dataclass(frozen=True)
class Lines:
    """The lines of a run with the steps that each stands for; arrays of equal length.

    Attributes:
        stands_for: steps since the line before, of the same attempt, at most the usual distance of lines; of an
            attempt's last line also the steps after it, from which the next attempt continued.
        step_s: time of one of these steps; NaN if unknown.
        timed: whether all its steps are behind the attempt's warm-up.
        by_clock, clock_error: as in ``Timing``.
    """

    step: Integers
    generation: Integers
    stands_for: Integers
    step_s: Floats
    timed: NDArray[np.bool_]
    by_clock: bool
    clock_error: float = 0.0

    @property
    def spent_s(self) -> Floats:
        """Return the time of all steps of a line; 0 if unknown."""
        spent: Floats = np.nan_to_num(self.step_s) * self.stands_for
        return spent

    def seconds_of(self, generation: int) -> tuple[float, float]:
        """Return the time of the steps that count for an attempt: after its warm-up, and in it."""
        own = self.generation == generation
        return float(self.spent_s[own & self.timed].sum()), float(self.spent_s[own & ~self.timed].sum())

    def untimed(self, generation: int) -> bool:
        """Return whether an attempt made steps, and nobody knows how long any of them took."""
        own = self.step_s[self.generation == generation]
        return bool(own.size) and not np.isfinite(own).any()

    def steady_s(self) -> Floats:
        """Return the time of all steps of a line; in the warm-up, or of unknown time, they count as the median."""
        is_timed = self.timed & np.isfinite(self.step_s)
        if not is_timed.any():
            return np.full(self.step.size, math.nan)
        (usual_s,) = quantiles(self.step_s[is_timed], self.stands_for[is_timed], (0.5,))
        steady: Floats = np.where(is_timed, self.spent_s, usual_s * self.stands_for)
        return steady


def lines_of(
    series: Series, first_steps: Mapping[int, int], every: int = 1, last_steps: Mapping[int, int] | None = None,
    within_s: float = 0.0, untimed: int = WARM_UP_STEPS,
) -> Lines:  # fmt: skip
    """Return the lines of a run with the steps that each stands for.

    Args:
        first_steps: steps done before each attempt, by generation.
        every: steps between two lines, if the configuration sets it.
        last_steps: by generation, the last step of the attempt, though a later attempt may have made it again; by
            default that of its last line in the series.
        within_s: delay of a line's time after it was written, at most.
        untimed: steps of each attempt that do not count.
    """
    step, generation = np.asarray(series.step, np.int64), np.asarray(series.generation, np.int64)
    spans = _spans(generation, step, first_steps, last_steps or {})
    _, index = np.unique(generation, return_inverse=True)
    first_step, ended = (np.array([span[end] for span in spans.values()], np.int64)[index] for end in (0, 1))
    follows = np.r_[False, generation[1:] == generation[:-1]] if step.size else np.zeros(0, bool)
    left = np.r_[first_step[:1], step[:-1]]  # the line before, of whichever attempt
    apart = step - np.where(follows, left, np.maximum(first_step, left))
    step_s = _figure(series, "step_time_s")
    by_clock = not np.isfinite(step_s).any()
    usual = max(every, int(np.median(apart))) if step.size else every
    stands_for = np.minimum(apart, usual)
    warm_up = np.array([warm_up_steps(untimed, last - first) for first, last in spans.values()], np.int64)[index]
    behind = step - first_step - stands_for >= warm_up  # with all their steps, or with the last if none is with all
    timed = (behind if behind.any() else step - first_step > warm_up) | (ended - first_step <= 1).all()
    error = 0.0
    if by_clock:
        step_s, reaches_back, error = _by_clock(
            step, generation, _figure(series, "ts_s"), step - first_step < warm_up, within_s
        )
        if (clear := timed & ~reaches_back).any() or within_s:
            timed = clear
    stands_for[:-1] += (np.minimum(step - left, usual) - stands_for)[1:]
    return Lines(step, generation, stands_for, np.where(step_s >= 0, step_s, math.nan), timed, by_clock, error)


def timing(series: Series, lines: Lines) -> Timing | None:
    """Return the speed of a run; None if no step's time is known."""
    is_finite = np.isfinite(lines.step_s)
    counts = is_finite & lines.timed
    if not counts.any():
        return None
    times, weights = lines.step_s[counts], lines.stands_for[counts]
    median, p99 = quantiles(times, weights, (0.5, 0.99))
    warm_up = is_finite & ~counts
    mean = float(np.average(times, weights=weights))
    return Timing(
        step_s=median,
        p99_s=p99,
        mean_s=mean,
        std_s=math.sqrt(float(np.average((times - mean) ** 2, weights=weights))),
        tokens_per_s=_over_time(_figure(series, "tokens_per_s")[counts], times * weights),
        mfu=_over_time(_figure(series, "mfu")[counts], times * weights),
        steps=int(weights.sum()),
        window_s=float((times * weights).sum()),
        warm_up_steps=int(lines.stands_for[warm_up].sum()),
        warm_up_s=float(lines.spent_s[warm_up].sum()),
        by_clock=lines.by_clock,
        clock_error=lines.clock_error,
    )


def smooth(values: Floats, places: Integers) -> Floats:
    """Return trailing means over a fiftieth of the values at some places; values that are not finite are left out."""
    width, finite = max(1, values.size // 50), np.isfinite(values)
    ends = np.ravel((np.maximum(0, places + 1 - width), places + 1), order="F")
    sums, counts = (
        np.add.reduceat(np.append(part, 0.0), ends)[::2] for part in (np.where(finite, values, 0.0), finite)
    )
    with np.errstate(invalid="ignore"):
        smoothed: Floats = sums / np.where(counts > 0, counts, math.nan)
    return smoothed


def quantiles(values: Floats, weights: Integers, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return weighted quantiles, interpolated linearly, as NumPy does with each value repeated by its weight."""
    order = np.argsort(values, kind="stable")
    ordered, reached = values[order], np.cumsum(weights[order])
    places = np.asarray(shares) * (reached[-1] - 1)
    below = np.floor(places)
    low, high = (ordered[np.searchsorted(reached, place, side="right")] for place in (below, np.ceil(places)))
    return tuple(float(value) for value in low + (places - below) * (high - low))


def _by_clock(
    step: Integers, generation: Integers, ts_s: Floats, warm: NDArray[np.bool_], within_s: float
) -> tuple[Floats, NDArray[np.bool_], float]:
    """The time of a step by the times of the lines, whether it is also that of warm-up steps, and its error at most."""
    step_s, reaches_back, error = np.full(step.size, math.nan), np.zeros(step.size, bool), 0.0
    for number in np.unique(generation):
        own = np.flatnonzero(generation == number)  # those of another attempt may lie between them
        steps_made, when_s, is_warm = step[own], ts_s[own], warm[own]
        timed = _with_time(when_s, within_s)
        first = int(np.argmin(is_warm[timed])) if timed.size and not is_warm[timed].all() else timed.size
        for part in (timed[: first + 1], timed[first:]):
            ends = _far_apart(part, when_s, within_s)
            if ends.size < 2:
                continue
            lines, spent_s = own[ends[0] + 1 : ends[-1] + 1], np.diff(when_s[ends])
            step_s[lines] = np.repeat(spent_s / np.diff(steps_made[ends]), np.diff(ends))
            reaches_back[lines] = is_warm[ends[0]]
            if within_s and not is_warm[ends[0]]:
                error = max(error, within_s / float(spent_s.min()))
    return step_s, reaches_back, error


def _with_time(ts_s: Floats, within_s: float) -> Integers:
    """Return which lines have the time at which they were written: the last may lie in a buffer, emptied at the end."""
    timed = np.flatnonzero(np.isfinite(ts_s))
    if within_s and timed.size > 1 and timed[-1] - timed[-2] > 1 and ts_s[timed[-1]] - ts_s[timed[-2]] > within_s:
        return timed[:-1]
    return timed


def _far_apart(lines: Integers, ts_s: Floats, within_s: float) -> Integers:
    """Return the first line, further lines far enough apart, and the last line in place of the last of these."""
    if not within_s or not lines.size:
        return lines
    whole_s = float(ts_s[lines[-1]] - ts_s[lines[0]])
    # Two times measure the steps between them if they are ten times farther apart than each may be wrong; a hundred
    # times, if that leaves twenty.
    least_s = min(max(10 * within_s, whole_s / 20), 100 * within_s)
    ends = [int(lines[0])]
    last_s = float(ts_s[lines[0]])
    for line, when_s in zip(lines[1:].tolist(), ts_s[lines[1:]].tolist(), strict=True):
        if when_s - last_s >= least_s:
            ends.append(line)
            last_s = when_s
    if len(ends) > 1:
        ends[-1] = int(lines[-1])
    return np.array(ends, np.int64)


def _spans(
    generation: Integers, step: Integers, first_steps: Mapping[int, int], last_steps: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """By generation: how many steps were done when the attempt began, and the last step that it made."""
    numbers, firsts = np.unique(generation, return_index=True)
    _, from_end = np.unique(generation[::-1], return_index=True)
    ends = zip(numbers.tolist(), step[firsts].tolist(), step[::-1][from_end].tolist(), strict=True)
    return {
        number: (min(first_steps.get(number, 0), first - 1), max(last_steps.get(number, 0), last))
        for number, first, last in ends
    }


def _over_time(values: Floats, spent_s: Floats) -> float | None:
    """Return the mean of a rate over time; None if it is unknown for most of the time, or no time passed."""
    finite = np.isfinite(values)
    known_s = spent_s[finite].sum()
    if known_s < 0.5 * spent_s.sum() or not known_s:
        return None
    return float(np.average(values[finite], weights=spent_s[finite]))


def _figure(series: Series, name: str) -> Floats:
    return np.asarray(series.figures[name], np.float64)
