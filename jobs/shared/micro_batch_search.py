"""Choose the micro-batch that trains fastest: the next size to try, when to stop, the result. Pure.

A search goes up from a size that is likely to fit, through divisors of a rank's share of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

COMFORTABLE: Final = 8  # the first size of a search, if it divides the share
PAYS: Final = 0.03  # two sizes in a row that gain less than this over the best so far end a search
AS_FAST: Final = 0.02  # the smallest of sizes whose speeds differ by less is chosen: the rest of the memory stays free
FULL: Final = 0.92  # of the usable memory: above it the allocator begins to retry, and a run is not recommended
SEARCH_PASSES: Final = 2
"""Micro-batches of a timed optimizer step: the first shows the time of another, the last that of the update."""

SEARCH_S: Final = 60.0  # for so long a search goes on to larger sizes, from its first measurement


@dataclass(frozen=True)
class SizeTrial:
    """A measured micro-batch: time of a step, peak (None if unknown) and usable memory (None for no limit)."""

    micro_batch: int
    step_s: float
    peak_gb: float | None = None
    usable_gb: float | None = None

    @property
    def fits(self) -> bool:
        """Return whether it leaves the allocator the room that it needs."""
        return self.peak_gb is None or self.usable_gb is None or self.peak_gb <= FULL * self.usable_gb


def first_size(share: int, most: int = COMFORTABLE) -> int:
    """Return the first size: the largest divisor of a rank's share of the batch up to a limit."""
    return max(size for size in range(1, min(share, most) + 1) if share % size == 0)


def smaller_size(share: int, size: int) -> int | None:
    """Return the size to begin with after the first size did not fit; None after 1."""
    return None if size == 1 else first_size(share, size // 2)


def next_size(share: int, trials: Sequence[SizeTrial], too_big: int | None = None) -> int | None:
    """Return the next size to try; None if that would not pay, or is expected not to fit."""
    last = trials[-1]
    before_s = min((trial.step_s for trial in trials[:-2]), default=inf)
    if not last.fits or min(trial.step_s for trial in trials[-2:]) >= before_s * (1.0 - PAYS):
        return None
    most = min(share, (too_big or share + 1) - 1)
    larger = [size for size in range(last.micro_batch + 1, most + 1) if share % size == 0]
    doubled = min((size for size in larger if size >= 2 * last.micro_batch), default=max(larger, default=None))
    if doubled is None or _may_fit(trials, doubled):
        return doubled
    between = [size for size in larger if 1.25 * last.micro_batch <= size < doubled and _may_fit(trials, size)]
    return max(between, default=None)


def best_size(trials: Sequence[SizeTrial]) -> int | None:
    """Return the smallest size that is as fast as the fastest that fits; None if none was measured."""
    able = [trial for trial in trials if trial.fits] or list(trials[:1])
    if not able:
        return None
    fastest_s = min(trial.step_s for trial in able)
    return min(trial.micro_batch for trial in able if trial.step_s <= fastest_s * (1.0 + AS_FAST))


def _may_fit(trials: Sequence[SizeTrial], size: int) -> bool:
    usable_gb = trials[-1].usable_gb
    peaks = [(trial.micro_batch, trial.peak_gb) for trial in trials if trial.peak_gb is not None][-2:]
    if len(peaks) < 2 or usable_gb is None:
        return True
    (low, low_gb), (high, high_gb) = peaks
    slope = max(0.0, (high_gb - low_gb) / (high - low))
    return high_gb + slope * (size - high) <= FULL * usable_gb
