"""The GPUs that an attempt finds on its node, and how full they are, through NVIDIA's management library.

A GPU that is dying can block the library: nobody waits for it for long.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dscampaign.jobs.shared.documents import Number, Whole
from dscampaign.jobs.shared.nvml import Unavailable, each_gpu, gpu_names, listed, memory_bytes, session

BEFORE_TIMEOUT_S = 15.0  # without its persistence daemon, the driver needs seconds to wake up each GPU
END_TIMEOUT_S = 0.5  # in all, at the end: that is between SIGTERM and SIGKILL
_LOST = re.compile(r"\bis lost\b", re.IGNORECASE)
"""The library's error for a GPU that was there and does not answer any more."""


@dataclass(frozen=True)
class Gpu:
    """A GPU at a single moment."""

    device: str  # as CUDA_VISIBLE_DEVICES names it
    used_bytes: Whole
    total_bytes: Whole


@dataclass(frozen=True)
class GpuFacts:
    """A node's GPUs before and after an attempt; None if the library did not answer, for the reason in `trouble`."""

    asked: Number
    before: tuple[Gpu, ...] | None
    after: tuple[Gpu, ...] | None
    trouble: str = ""

    @property
    def missing(self) -> bool:
        """Return whether fewer answered than the job requested."""
        return self.before is not None and len(self.before) < self.asked

    @property
    def lost(self) -> bool:
        """Return whether a GPU that answered at first did not at the end."""
        return self.before is not None and self.after is not None and len(self.after) < len(self.before)


class GpuWatch:
    """Looks at a node's GPUs when an attempt begins and when it ends, each time in a thread that may never return."""

    def __init__(self, requested: int, visible: str) -> None:
        self._asked, self._visible = requested, listed(visible)
        self._before = self._look() if requested else None

    def facts(self) -> GpuFacts | None:
        """Return the GPUs, once the processes have ended; None for a run without GPUs."""
        if self._before is None:
            return None
        until_s = time.monotonic() + END_TIMEOUT_S
        before, trouble = self._before(END_TIMEOUT_S)
        after = None if before is None else self._look()(max(0.0, until_s - time.monotonic()))[0]
        return GpuFacts(self._asked, before, after, trouble)

    def wait(self) -> None:
        """Wait until the first look is done: memory of the ranks would count as another user's."""
        if self._before is not None:
            self._before(BEFORE_TIMEOUT_S)

    def _look(self) -> Callable[[float], tuple[tuple[Gpu, ...] | None, str]]:
        """Return a function that waits some seconds and returns the GPUs, or None and the trouble."""
        results: list[tuple[tuple[Gpu, ...] | None, str]] = []

        def look() -> None:
            try:
                with session() as nvml:
                    results.append((_read_gpus(nvml, self._visible, self._asked), ""))
            except Unavailable as exc:
                results.append((None, str(exc)))

        def wait(timeout_s: float) -> tuple[tuple[Gpu, ...] | None, str]:
            thread.join(timeout_s)
            return results[0] if results else (None, "the driver did not answer in time")

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        return wait


def _read_gpus(nvml: Any, visible: Sequence[str], requested: int) -> tuple[Gpu, ...]:
    """Return the GPUs that answer, out of ``visible`` or of all.

    Fewer than ``requested`` only if a GPU is lost, or if the node has fewer altogether: CUDA understands names that the
    library does not, such as the beginning of a UUID, or a part of a GPU (MIG).
    """
    count = nvml.nvmlDeviceGetCount()
    gpus, troubles = each_gpu(nvml, gpu_names(nvml, visible), lambda _, name, gpu: Gpu(name, *memory_bytes(nvml, gpu)))
    parts = any(name.startswith("MIG") for name in visible)
    if len(gpus) < requested and not any(map(_LOST.search, troubles)) and (parts or count >= requested):
        raise Unavailable("; ".join(troubles) or f"CUDA_VISIBLE_DEVICES names {len(visible)} GPUs of {requested}")
    return tuple(gpus)
