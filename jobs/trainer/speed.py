"""How fast an attempt trains, over a window that begins after warm-up and compilation.

Model FLOPs utilisation is ``tokens/s/GPU x FLOP per token / peak`` (Chowdhery et al. 2022, PaLM, appendix B).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

PROFILED_STEPS: Final = 3
"""Optimizer steps that are profiled: enough to see the pattern, few enough for a trace that opens."""

PEAK_FLOPS: Final = (
    (re.compile(r"\bH[12]00 NVL\b"), 835e12),
    (re.compile(r"\bH100 PCIe\b"), 756e12),
    (re.compile(r"\bH[12]00\b"), 989e12),
    (re.compile(r"\bA100\b"), 312e12),
)
"""Dense bf16 and fp16 FLOP/s by parts of the device's name; the first match counts."""


def profiled_steps(first: int | None) -> range:
    """The optimizer steps that are profiled if ``first`` is the first of them; none if it is None."""
    return range(0) if first is None else range(first, first + PROFILED_STEPS)


def peak_flops(device: str) -> float | None:
    """Return the peak of a device by its name; None if unknown, as for a part of a GPU (MIG)."""
    if re.search(r"\bMIG\b", device):
        return None
    return next((peak for name, peak in PEAK_FLOPS if name.search(device)), None)


@dataclass(frozen=True)
class Work:
    """The work of a step over all ranks: targets without padding, FLOP of a token; a device's peak, None if unknown."""

    tokens: int
    ranks: int
    flops_per_token: float
    peak_flops: float | None

    def mfu(self, step_time_s: float) -> float | None:
        """Model FLOPs utilisation of a step, from 0 to 1."""
        if self.peak_flops is None:
            return None
        return self.tokens / step_time_s / self.ranks * self.flops_per_token / self.peak_flops


class Speed:
    """The times of an attempt's steps by the device's clock; the first ``warm_up`` do not count."""

    def __init__(self, work: Work, warm_up: int) -> None:
        self._work, self._warm_up = work, warm_up
        self._warm_up_s: list[float] = []
        self._times_s: list[float] = []
        self._waits_s: list[float] = []

    def add(self, time_s: float, waited_s: float) -> None:
        """Add the next step; ``waited_s``: the part in which this rank's host waited for data."""
        if len(self._warm_up_s) < self._warm_up:
            self._warm_up_s.append(time_s)
        else:
            self._times_s.append(time_s)
            self._waits_s.append(waited_s)

    def summary(self) -> dict[str, Any] | None:
        """Return the window's figures; None before the first step after the warm-up."""
        if not self._times_s:
            return None
        total_s, work = sum(self._times_s), self._work
        first, median, third = np.percentile(self._times_s, [25, 50, 75]).tolist()
        tokens_per_s = work.tokens * len(self._times_s) / total_s
        return {
            "steps": len(self._times_s),
            "window_s": total_s,
            "warm_up_steps": len(self._warm_up_s),
            "warm_up_s": sum(self._warm_up_s),
            "step_time_median_s": median,
            "step_time_iqr_s": third - first,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": tokens_per_s / work.ranks,
            "mfu": work.mfu(total_s / len(self._times_s)),
            "flops_per_token": work.flops_per_token,
            "peak_flops": work.peak_flops,
            "data_wait_share": sum(self._waits_s) / total_s,
        }
