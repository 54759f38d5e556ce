"""Medians with intervals, ratios, and what may be concluded from them. Pure; needs NumPy.

Everything is about runs, never about steps: the steps of one run share its machine, its luck and its compiler, so a
thousand of them are one observation.

The interval of a median lies between two of the values, as near to each other as the sign test allows: it holds the
true median at least nineteen times in twenty, whatever the distribution. Fewer than six values allow no more than their
range, which holds it three times in four with three of them, 15 in 16 with five. The intervals of ratios and contrasts
are percentile bootstraps (Efron 1979) with fixed draws, so that the same data always give the same page. These hold the
true value nineteen times in twenty from five repeats on, and about nine in ten with three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

DRAWS: Final = 10_000
COVERAGE: Final = 0.95

LEAST_REPEATS: Final = 3
"""Fewer say nothing about how much repeats differ."""

TIE: Final = 0.02
"""Speeds that differ by less are equal, however narrow their intervals are."""

CLOSE: Final = 0.10
"""Speeds that may differ by more than this are not equal, though their repeats overlap: too little is known."""

LOSS_MARGIN_NATS: Final = 0.01
"""Held-out losses that differ by less are equal, however narrow their intervals are."""

LOSS_SHARE: Final = 0.003
"""The same for losses whose unit nobody knows, as a part of the baseline's: what the margin is of a loss of 3 nats."""

COARSE: Final = 5
"""A margin that is so many times the least one hides what most comparisons are after."""

_SEED: Final = 20_240_101


@dataclass(frozen=True)
class Estimate:
    """A median over repeats.

    Attributes:
        low, high: its interval; None with fewer than ``LEAST_REPEATS``.
        iqr, std: distance between the quartiles, and standard deviation, of the repeats; None for one.
    """

    value: float
    low: float | None
    high: float | None
    iqr: float | None
    std: float | None
    repeats: int


class Order(StrEnum):
    """What a comparison of two speeds has shown."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    INCONCLUSIVE = "inconclusive"


class Sameness(StrEnum):
    """What a comparison of two losses has shown."""

    EQUIVALENT = "equivalent"
    BETTER = "better"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class LossTest:
    """The test of a condition's held-out loss against the baseline's.

    Attributes:
        difference: the condition's less the baseline's, with its interval over pairs of repeats.
        margin: differences up to it count as none.
        reason: why nothing could be shown; empty otherwise.
    """

    verdict: Sameness
    difference: Estimate | None
    margin: float
    reason: str = ""


def estimate(values: Sequence[float]) -> Estimate | None:
    """The median of the finite values; None if there are none."""
    return _estimate(tuple(value for value in values if math.isfinite(value)))


@lru_cache(maxsize=100_000)  # a page asks for the same ones in several places, and the draws take a millisecond
def _estimate(values: tuple[float, ...]) -> Estimate | None:
    known = np.array(values)
    if not known.size:
        return None
    low, high = _around_median(known) if known.size >= LEAST_REPEATS else (None, None)
    several = known.size > 1
    iqr = float(np.subtract(*np.percentile(known, [75, 25]))) if several else None
    std = float(np.std(known, ddof=1)) if several else None
    return Estimate(float(np.median(known)), low, high, iqr, std, int(known.size))


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate | None:
    """The ratio of two medians, with an interval where both sides have the repeats for one; values above 0."""
    return _ratio(tuple(above), tuple(below))


@lru_cache(maxsize=100_000)
def _ratio(above: tuple[float, ...], below: tuple[float, ...]) -> Estimate | None:
    over, under = (np.array([v for v in side if math.isfinite(v) and v > 0]) for side in (above, below))
    if not (over.size and under.size):
        return None
    repeats = int(min(over.size, under.size))
    low, high = (None, None) if repeats < LEAST_REPEATS else _interval(_medians(over, 1) / _medians(under, 2))
    return Estimate(float(np.median(over) / np.median(under)), low, high, None, None, repeats)


def contrast(cells: Sequence[tuple[Sequence[float], float]], *, additive: bool = False) -> Estimate | None:
    """The product of medians, each to the power of its weight, with an interval where all cells have the repeats.

    Weights of 1 and -1 make a ratio; 1, -1, -1 and 1 a ratio of ratios; divided by the number of pairs, their geometric
    mean. Values are above 0; None where a cell has none.

    Args:
        additive: the sum of medians, each times its weight, instead; values are any that are finite.
    """
    return _contrast(tuple((tuple(values), weight) for values, weight in cells), additive)


@lru_cache(maxsize=10_000)
def _contrast(cells: tuple[tuple[tuple[float, ...], float], ...], additive: bool) -> Estimate | None:
    known = [(np.array([v for v in values if math.isfinite(v) and (additive or v > 0)]), w) for values, w in cells]
    if not known or not all(values.size for values, _ in known):
        return None
    there, back = (np.positive, np.positive) if additive else (np.log, np.exp)
    repeats = int(min(values.size for values, _ in known))
    value = float(back(sum(weight * there(np.median(values)) for values, weight in known)))
    if repeats < LEAST_REPEATS:
        return Estimate(value, None, None, None, None, repeats)
    draws = sum(weight * there(_medians(values, stream)) for stream, (values, weight) in enumerate(known))
    return Estimate(value, *_interval(back(draws)), None, None, repeats)


def order(speeds: Sequence[float], baseline: Sequence[float]) -> Order:
    """Whether speeds (higher is faster) differ from the baseline's.

    A ratio within ``TIE`` of 1, or whose interval holds 1, is a tie if all of the interval lies within ``CLOSE`` of 1;
    if not, it shows nothing. Nor do fewer than ``LEAST_REPEATS`` on a side.
    """
    found = ratio(speeds, baseline)
    if found is None or found.low is None or found.high is None:
        return Order.INCONCLUSIVE
    if abs(found.value - 1.0) < TIE or found.low <= 1.0 <= found.high:
        close = found.low >= 1.0 / (1.0 + CLOSE) and found.high <= 1.0 + CLOSE
        return Order.TIE if close else Order.INCONCLUSIVE
    return Order.FASTER if found.value > 1.0 else Order.SLOWER


def loss_test(
    losses: Sequence[tuple[int, float]], baseline: Sequence[tuple[int, float]], *, own: bool = False
) -> LossTest:
    """Whether held-out losses are as good as the baseline's, from pairs with the same seed and order of data.

    Both are (number of the repeat, held-out loss); the number stands for the seed. The margin is `least_margin`, or
    twice the standard deviation of the baseline's repeats where that is more. All within it is equivalence; all beyond
    it is a difference. Anything else, and fewer than ``LEAST_REPEATS``, shows nothing.

    Args:
        own: losses are in a script's own unit; else they are in nats.
    """
    base = {number: loss for number, loss in baseline if math.isfinite(loss)}
    margin = _margin(list(base.values()), own=own)
    ended = {number: loss for number, loss in losses if math.isfinite(loss)}
    if len(ended) < len(losses):
        return LossTest(Sameness.WORSE, None, margin, "a loss is not finite")
    differences = [loss - base[number] for number, loss in sorted(ended.items()) if number in base]
    found = estimate(differences)
    if found is None:
        return LossTest(Sameness.INCONCLUSIVE, None, margin, "no repeat of both reported this loss")
    return LossTest(*_concluded(found, margin))


def _concluded(found: Estimate, margin: float) -> tuple[Sameness, Estimate, float, str]:
    if found.low is None or found.high is None:
        return Sameness.INCONCLUSIVE, found, margin, f"fewer than {LEAST_REPEATS} repeats"
    if -margin <= found.low and found.high <= margin:
        return Sameness.EQUIVALENT, found, margin, ""
    if found.low > margin:
        return Sameness.WORSE, found, margin, ""
    if found.high < -margin:
        return Sameness.BETTER, found, margin, ""
    return Sameness.INCONCLUSIVE, found, margin, "the repeats vary too much"


def least_margin(baseline: Sequence[float], *, own: bool) -> float:
    """How far losses may be from the baseline's and count as equal, however little repeats differ.

    Args:
        own: they are in a script's own unit; else they are in nats.
    """
    if not own:
        return LOSS_MARGIN_NATS
    known = estimate(baseline)
    return LOSS_SHARE * abs(known.value) if known else 0.0


def is_coarse(margin: float, baseline: Sequence[float], *, own: bool) -> bool:
    """Whether losses that count as equal may be far apart, because the baseline's repeats are."""
    return margin > COARSE * least_margin(baseline, own=own)


def _margin(baseline: Sequence[float], *, own: bool) -> float:
    least = least_margin(baseline, own=own)
    return least if len(baseline) < LEAST_REPEATS else max(least, 2.0 * float(np.std(baseline, ddof=1)))


def _around_median(values: NDArray[np.float64]) -> tuple[float, float]:
    """The two values nearest to each other that hold the true median with ``COVERAGE``; if none do, the outermost."""
    ordered, left_out = np.sort(values), _left_out(values.size)
    return float(ordered[left_out]), float(ordered[-1 - left_out])


@lru_cache
def _left_out(repeats: int) -> int:
    """How many values at each end lie outside the interval of their median, by the sign test."""
    below = accumulate(math.comb(repeats, values) / (1 << repeats) for values in range(repeats))
    return max(0, sum(2.0 * chance <= 1.0 - COVERAGE for chance in below) - 1)


def _medians(values: NDArray[np.float64], stream: int) -> NDArray[np.float64]:
    """Medians of ``DRAWS`` samples of the values, drawn with replacement."""
    ascending = np.argsort(values, kind="stable")
    below, above = _middles(tuple(np.argsort(ascending).tolist()), stream)
    ordered = values[ascending]
    medians: NDArray[np.float64] = (ordered[below] + ordered[above]) / 2.0
    return medians


@lru_cache(maxsize=512)  # the ranks of three values are one of six, whatever the values
def _middles(ranks: tuple[int, ...], stream: int) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """The ranks of the two middle values of each sample, of an odd number twice that of the one."""
    size = len(ranks)
    chosen = np.random.default_rng((_SEED, stream)).integers(0, size, (DRAWS, size))
    drawn = np.sort(np.array(ranks, np.int16)[chosen], axis=1)
    return drawn[:, (size - 1) // 2].copy(), drawn[:, size // 2].copy()


def _interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    tail = 50.0 * (1.0 - COVERAGE)
    low, high = np.percentile(draws, [tail, 100.0 - tail])
    return float(low), float(high)
