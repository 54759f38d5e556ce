"""Medians, comparisons with intervals, and their conclusions: docs/results.md has the reasons. Pure; needs NumPy.

The observations are runs, never steps: the steps of a run share its machine, its luck and its compiler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import Final

import numpy as np

LEAST_REPEATS: Final = 3
"""Fewer repeats do not show how much they differ."""

TIE: Final = 0.02
"""Speeds that differ by less are equal, however narrow their intervals are."""

CLOSE: Final = 0.10
"""Speeds that may differ by more than this are not equal, though their repeats overlap: too little is known."""

LOSS_MARGIN_NATS: Final = 0.01
"""Held-out losses that differ by less are equal, unless the spec has its own `loss_margin`."""


@dataclass(frozen=True)
class Estimate:
    """A median over repeats, or a comparison.

    Attributes:
        low, high: the range of the repeats, or of a comparison its interval; None with fewer than ``LEAST_REPEATS``.
        std: standard deviation of the repeats; None for a single repeat.
    """

    value: float
    low: float | None
    high: float | None
    std: float | None
    repeats: int

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the range or the interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Standing(StrEnum):
    """The result of a comparison, everywhere: of two speeds, of two losses, of a condition and the best.

    The value with spaces is its text.
    """

    BEST = "best"
    FIRST = "first"
    """Ranks first, but not beyond doubt."""
    FASTEST = "fastest"
    LOWEST_LOSS = "lowest_loss"
    """The fastest and the best learner, if they differ and no objective is set."""
    FASTER = "faster"
    SLOWER = "slower"
    BETTER = "better"
    WORSE = "worse"
    """Of losses, and of figures other than speed."""
    EQUAL = "equal"
    NOT_PROVEN = "not_proven"
    """The repeats prove neither a difference nor equality."""
    OUT = "out"


@dataclass(frozen=True)
class LossTest:
    """The test of a condition's held-out loss against the baseline's.

    Attributes:
        difference: the condition's less the baseline's, with its interval over pairs of repeats.
        margin: differences up to it count as none.
        reason: why nothing could be shown; empty otherwise.
        no_worse: whether it is shown that the condition is worse by the margin at most.
    """

    verdict: Standing
    difference: Estimate | None
    margin: float
    reason: str = ""
    no_worse: bool = False


def estimate(values: Sequence[float]) -> Estimate | None:
    """The median of the finite values; None if there are none."""
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return None
    low, high = (min(finite), max(finite)) if len(finite) >= LEAST_REPEATS else (None, None)
    mean = math.fsum(finite) / len(finite)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in finite) / (len(finite) - 1)) if len(finite) > 1 else None
    return Estimate(median(finite), low, high, std, len(finite))


def ratio(
    above: Sequence[float], below: Sequence[float], among: int = 1, *, spent: float | None = None, sides: int = 2
) -> Estimate | None:
    """Return the ratio of two geometric means, with an interval if both sides have the repeats; values above 0."""
    return contrast(((tuple(above), 1.0), (tuple(below), -1.0)), among=among, spent=spent, sides=sides)


@lru_cache(maxsize=10_000)
def contrast(
    cells: tuple[tuple[tuple[float, ...], float], ...],
    *,
    additive: bool = False,
    among: int = 1,
    spent: float | None = None,
    sides: int = 2,
) -> Estimate | None:
    """Return the product of geometric means, each to the power of its weight.

    Weights of 1 and -1 make a ratio; divided by the number of pairs, their geometric mean. Values are above 0; None if
    a cell has none. The interval (Welch 1947) needs ``LEAST_REPEATS`` in each cell.

    Args:
        additive: return the sum of means, each times its weight, instead; values are any that are finite.
        among: comparisons whose intervals hold together (Bonferroni).
        spent: None if values are independent. Else values at the same place of each cell are of the same block, and
            share its luck: the interval is over blocks, with so many degrees of freedom less.
        sides: of the interval, that are wrong at 5 % together; each of two one-sided tests has a single side.
    """
    to_scale, back = (float, float) if additive else (math.log, math.exp)
    terms = [([to_scale(v) for v in values if math.isfinite(v) and (additive or v > 0)], w) for values, w in cells]
    if not terms or not all(values for values, _ in terms):
        return None
    if spent is not None:
        blocks = zip(*(values for values, _ in terms), strict=True)
        weights = [weight for _, weight in terms]
        terms = [([math.fsum(w * v for w, v in zip(weights, row, strict=True)) for row in blocks], 1.0)]
    means = [math.fsum(values) / len(values) for values, _ in terms]
    centre = math.fsum(weight * mean for (_, weight), mean in zip(terms, means, strict=True))
    repeats = min(len(values) for values, _ in terms)
    if repeats < LEAST_REPEATS:
        return Estimate(back(centre), None, None, None, repeats)
    variance, inverse = 0.0, 0.0
    for (values, weight), mean in zip(terms, means, strict=True):
        part = weight**2 * math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)
        variance, inverse = variance + part, inverse + part**2 / (len(values) - 1)
    tail = 0.05 / sides / among
    reach = student(variance**2 / inverse - (spent or 0.0), tail) * math.sqrt(variance) if inverse else 0.0
    return Estimate(back(centre), back(centre - reach), back(centre + reach), None, repeats)


def student(degrees: float, tail: float) -> float:
    """Return the value that Student's t exceeds with the probability `tail`; a little more, to a tenth of a degree."""
    return _student_of(max(1.0, math.floor(10 * degrees) / 10), tail)


@lru_cache(maxsize=10_000)
def _student_of(degrees: float, tail: float) -> float:
    beta = math.exp(math.lgamma(degrees / 2) + math.lgamma(0.5) - math.lgamma((degrees + 1) / 2))
    middles = (np.arange(1000) + 0.5) / 1000
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        angle = (low + high) / 2
        above = float((np.sin(angle * middles) ** (degrees - 1)).mean()) * angle / beta
        low, high = (angle, high) if above < tail else (low, angle)
    return math.sqrt(degrees) / math.tan(high)


def order(
    speeds: Sequence[float], baseline: Sequence[float], among: int = 1, *, spent: float | None = None
) -> Standing:
    """Return whether speeds (higher is faster) differ from the baseline's.

    Faster or slower: the interval of the ratio leaves out 1, and the ratio differs from 1 by ``TIE`` or more. Else a
    tie, if both one-sided tests show that the ratio is within ``CLOSE`` of 1. Fewer than ``LEAST_REPEATS`` on a side
    show nothing. For `among` and `spent` see `contrast`.
    """
    factor, within = (ratio(speeds, baseline, among, spent=spent, sides=sides) for sides in (2, 1))
    if not factor or not within or not factor.ends or not within.ends:
        return Standing.NOT_PROVEN
    if abs(factor.value - 1.0) >= TIE and not factor.ends[0] <= 1.0 <= factor.ends[1]:
        return Standing.FASTER if factor.value > 1.0 else Standing.SLOWER
    is_close = within.ends[0] >= 1.0 / (1.0 + CLOSE) and within.ends[1] <= 1.0 + CLOSE
    return Standing.EQUAL if is_close else Standing.NOT_PROVEN


def fisher(free: int, tail: float) -> float:
    """Return the ratio of variances that chance exceeds so seldom: Fisher's F with 2 and `free` degrees of freedom.

    It is exact for three blocks, and cautious for more.
    """
    return free / 2 * (math.exp(-2 / free * math.log(tail)) - 1.0)


def loss_test(
    losses: Sequence[tuple[int, float]],
    baseline: Sequence[tuple[int, float]],
    margin: float = LOSS_MARGIN_NATS,
    among: int = 1,
) -> LossTest:
    """Return whether held-out losses are as good as the baseline's, from pairs with the same seed and order of data.

    Both are (number of the repeat, held-out loss); the number stands for the seed. Equivalent: both one-sided tests
    show that the mean difference is within the margin, which is fixed beforehand, never by how much these losses vary.
    Worse or better: the whole interval lies beyond it. Anything else, and fewer than ``LEAST_REPEATS`` pairs, shows
    nothing. Wrong verdicts are as seldom over all comparisons `among` which this is.
    """
    base = {number: loss for number, loss in baseline if math.isfinite(loss)}
    ended = {number: loss for number, loss in losses if math.isfinite(loss)}
    if len(ended) < len(losses):
        return LossTest(Standing.WORSE, None, margin, "a loss is not finite")
    gaps = tuple(loss - base[number] for number, loss in sorted(ended.items()) if number in base)
    difference, within = (contrast(((gaps, 1.0),), additive=True, among=among, sides=sides) for sides in (2, 1))
    if not difference or not within:
        return LossTest(Standing.NOT_PROVEN, None, margin, "no repeat of both reported this loss")
    if not difference.ends or not within.ends:
        return LossTest(Standing.NOT_PROVEN, difference, margin, f"fewer than {LEAST_REPEATS} repeats")
    (low, high), no_worse = difference.ends, within.ends[1] <= margin
    if no_worse and -margin <= within.ends[0]:
        return LossTest(Standing.EQUAL, difference, margin, no_worse=True)
    if low > margin or high < -margin:
        better = high < -margin
        return LossTest(Standing.BETTER if better else Standing.WORSE, difference, margin, no_worse=better)
    return LossTest(Standing.NOT_PROVEN, difference, margin, "the repeats vary too much", no_worse=no_worse)


def loss_margin(baseline: Sequence[float], of_spec: float | None, *, own: bool) -> float:
    """Return how far losses may be from the baseline's and count as equal; `own` losses are in a script's own unit."""
    if of_spec is not None:
        return of_spec
    if not own:
        return LOSS_MARGIN_NATS
    middle = estimate(baseline)
    return 0.003 * abs(middle.value) if middle else 0.0
