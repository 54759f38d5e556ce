"""Blocks: runs of a repeat that shared a job, else a node and a time, so the same drift slowed them. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .conditions import Condition
from .statistics import LEAST_REPEATS, fisher, student

Block = tuple[int, str]
"""The number of the repeat, and its job or its nodes."""

DRIFT: Final = 0.02
"""Chance at which equal blocks seem to differ (F test): pairs chosen because they agree by luck are too sure."""

_CLEAR: Final = 0.05
"""Chance at which speeds that are steady within blocks seem to drift: else nothing is removed, and nothing spent."""

_LEAST_CONDITIONS: Final = 3
_LEAST_BLOCKS: Final = 5
"""Two conditions in fewer blocks do not show by their differences how fast the machine drifts within a block."""

_VARIED: Final = 0.25
"""Share of the time within blocks that is not due to the condition: with less, their order hardly changed, and a drift
looks like a difference."""

_EXACT: Final = 1e-18
"""Sums of squares below it are rounding errors."""


def blocks_of(conditions: Sequence[Condition], *, in_tokens: bool) -> tuple[str, dict[str, dict[Block, float]], float]:
    """Return ``job`` or ``round``, the speeds by condition and block, and the degrees of freedom to give up for drift.

    Speeds are taken at the same time of each block: without the drift within it. Nothing if blocks do not clearly
    differ, so that repeats are compared by themselves.
    """
    in_turn = _ran_in_turn(conditions)
    runs = []
    for one in conditions:
        counted = {run.repeat: run for run in one.counted}
        for repeat, speed in one.speeds(in_tokens=in_tokens):
            run = counted[repeat]
            nodes = ",".join(("on", *sorted(run.hosts))) if in_turn and run.tries == 1 else ""
            place, middle_s = run.shared_job or nodes, sum(run.span_s or (math.nan,)) / 2
            if place and math.isfinite(speed) and speed > 0:
                runs.append((one.name, (repeat, place), middle_s, speed))
    names, blocks = {name for name, _, _, _ in runs}, {block for _, block, _, _ in runs}
    if len(blocks) < LEAST_REPEATS:
        return "", {}, 0.0
    enough = len(names) >= _LEAST_CONDITIONS or len(blocks) >= _LEAST_BLOCKS
    differ, drift = _fit(runs, drifts=enough and all(math.isfinite(middle_s) for _, _, middle_s, _ in runs))
    if not differ:
        return "", {}, 0.0
    speeds: dict[str, dict[Block, float]] = {}
    for (name, block, _, speed), faster in zip(runs, drift, strict=True):
        speeds.setdefault(name, {})[block] = speed / float(np.exp(faster))
    packed = all(run.shared_job for one in conditions for run in one.counted)
    return "job" if packed else "round", speeds, 1 / (len(speeds) - 1) if drift.any() else 0.0


def _ran_in_turn(conditions: Iterable[Condition]) -> bool:
    """Return whether all runs of a repeat start, and one ends, before any of the next; False if a time is unknown."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    for run in (run for one in conditions for run in one.counted):
        if run.span_s is None:
            return False
        rounds.setdefault(run.repeat, []).append(run.span_s)
    ordered = [tuple(zip(*rounds[number], strict=True)) for number in sorted(rounds)]
    return len(ordered) > 1 and all(
        max(*starts, min(ends)) <= min(later) for (starts, ends), (later, _) in pairwise(ordered)
    )


def _fit(runs: Sequence[tuple[str, Block, float, float]], *, drifts: bool) -> tuple[bool, NDArray[np.float64]]:
    """Return whether blocks differ as a whole, and of each run by what drift raised the logarithm of its speed.

    Least squares over conditions, blocks and, if `drifts`, the time within the block.

    Args:
        runs: condition, block, time in seconds, and speed.
    """
    names, blocks, times_s, speeds = zip(*runs, strict=True)
    condition, block = _numbers(names), _numbers(blocks)
    time = _less_means(np.array(times_s)[:, None], block) if drifts else np.zeros((len(runs), 0))
    time /= np.abs(time).max(initial=0.0) or 1.0
    logs = _less_means(np.log(np.array(speeds))[:, None], condition)
    columns = _less_means(np.hstack([time, np.eye(block.max() + 1)[block]]), condition)
    if drifts and _least_squares(columns[:, 1:], columns[:, :1])[1] < _VARIED * float((time**2).sum()):
        return _fit(runs, drifts=False)
    _, without, fewer = _least_squares(columns[:, : time.shape[1]], logs)
    slopes, rest, more = _least_squares(columns, logs)
    free, apart = len(runs) - int(condition.max()) - 1 - more, more - fewer
    gained = _least_squares(columns[:, 1:], logs)[1] - rest
    if drifts and (free <= 0 or gained <= student(free, _CLEAR / 2) ** 2 * rest / free):
        return _fit(runs, drifts=False)
    differ = free > 0 and apart > 0 and (without - rest) / apart > fisher(free, DRIFT) * rest / free + _EXACT
    return differ, time @ slopes[: time.shape[1], 0]


def _numbers(values: Iterable[Hashable]) -> NDArray[np.intp]:
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(value, len(number)) for value in values])


def _less_means(columns: NDArray[np.float64], group: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return columns less their means in each group of rows."""
    sums = np.zeros((group.max() + 1, columns.shape[1]))
    np.add.at(sums, group, columns)
    found: NDArray[np.float64] = columns - (sums / np.bincount(group)[:, None])[group]
    return found


def _least_squares(columns: NDArray[np.float64], logs: NDArray[np.float64]) -> tuple[NDArray[Any], float, int]:
    """Return coefficients, the sum of squares of what they leave, and the rank."""
    found, _, rank, _ = np.linalg.lstsq(columns.T @ columns, columns.T @ logs, rcond=1e-9)  # small: blocks are few
    return found, float(((logs - columns @ found) ** 2).sum()), int(rank)
