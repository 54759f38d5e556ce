"""Records of the GPUs of an attempt. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

THROTTLE_REASONS = {
    0x8: "hardware slowdown",
    0x20: "too hot (driver)",
    0x40: "too hot (hardware)",
    0x80: "power brake (hardware)",
}
"""Bits of ``throttle`` for a GPU that a fault slows down; the others are normal."""

SLOWED = sum(THROTTLE_REASONS)
POWER_CAPPED = 0x4  # slowed down to stay within its power limit, as a GPU with much to do usually is


@dataclass(frozen=True)
class GpuDevice:
    """A GPU of an attempt, as its agent found it; None if the driver does not report a figure."""

    attempt_id: int
    node_rank: int  # the node's number in the job, from 0
    gpu: int  # the GPU's number on its node, as the ranks count them
    node: str
    name: str = ""
    uuid: str = ""
    mem_total_gb: float | None = None
    power_limit_w: float | None = None
    # sm_clock_max_mhz, mem_clock_max_mhz: the highest clocks of its processors and of its memory
    sm_clock_max_mhz: float | None = None
    mem_clock_max_mhz: float | None = None


@dataclass(frozen=True)
class GpuSample:
    """One GPU at a single moment; None if its driver does not report a figure."""

    attempt_id: int
    node_rank: int
    gpu: int
    ts_s: float
    span_s: float  # seconds since the sample before
    # util_pct, mem_util_pct: share of the time in which a kernel ran, and in which memory was read or written
    util_pct: float | None = None
    mem_util_pct: float | None = None
    mem_used_gb: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_w: float | None = None  # at this moment
    power_avg_w: float | None = None  # mean over the last second
    energy_j: float | None = None  # a counter; it began when the driver was loaded
    throttle: int | None = None  # bits of NVML's clock event reasons
    ecc_errors: int | None = None  # uncorrected errors since the driver was loaded


_KEY = ("attempt_id", "node_rank", "gpu", "ts_s", "span_s")

GPU_FIGURES = tuple(field.name for field in fields(GpuSample) if field.name not in _KEY)
"""The sampled figures of a GPU: the names in a line of telemetry, and the columns of ``gpu_sample``."""

WHOLE_FIGURES = frozenset({"throttle", "ecc_errors"})  # whole numbers among them


@dataclass(frozen=True)
class GpuUse:
    """The use of a GPU over a sampled time. Means are over time; None if nothing is known.

    Attributes:
        from_s, to_s: the first and the last sample.
        power_w, power_peak_w: mean and highest of the momentary power.
        power_avg_w, power_avg_peak_w: mean and highest of the power over one second.
        energy_j: growth of its counter between the first and the last sample.
        slowed, power_capped: shares of the time in which its clocks were held down by a fault (heat, the hardware's own
            brakes), and by its power limit.
        ecc_errors: uncorrected errors of that time.
        sampled_s: the time that its samples cover.
    """

    node_rank: int
    gpu: int
    node: str
    name: str
    samples: int
    from_s: float
    to_s: float
    util_pct: float | None
    power_w: float | None
    power_peak_w: float | None
    power_avg_w: float | None
    power_avg_peak_w: float | None
    energy_j: float | None
    temperature_max_c: float | None
    mem_used_max_gb: float | None
    slowed: float | None
    power_capped: float | None
    ecc_errors: int | None
    sampled_s: float = 0.0
    temperature_min_c: float | None = None


@dataclass(frozen=True)
class TokenEnergy:
    """The energy of all GPUs between two steps, and the tokens between.

    Attributes:
        first_step, last_step: their ends bound the time, so the first's own work is not part of it.
        energy_j: of the whole time, saving and evaluating included.
    """

    first_step: int
    last_step: int
    seconds: float
    energy_j: float
    tokens: float

    @property
    def j_per_token(self) -> float:
        """Joules per token."""
        return self.energy_j / self.tokens


@dataclass(frozen=True)
class AttemptGpus:
    """The use of GPUs by an attempt."""

    attempt_id: int
    gpus: tuple[GpuUse, ...]  # by node and number, over the whole attempt
    per_token: TokenEnergy | None  # None if it is not known: too few steps, too short, or a GPU without its counter
    # as ``gpus``, but of the samples from the end of the warm-up to that of the last step, and without energy. GPUs
    # without any are left out. Empty unless asked for.
    timed: tuple[GpuUse, ...] = ()

    @property
    def energy_j(self) -> float | None:
        """Energy of all GPUs together; None if any is unknown."""
        return total(gpu.energy_j for gpu in self.gpus)

    @property
    def power_w(self) -> float | None:
        """Mean momentary power of all GPUs together."""
        return total(gpu.power_w for gpu in self.gpus)

    @property
    def util_pct(self) -> float | None:
        """Mean utilisation over the GPUs."""
        percents = [gpu.util_pct for gpu in self.gpus if gpu.util_pct is not None]
        return sum(percents) / len(percents) if percents else None


def j_per_token(attempts: Iterable[AttemptGpus]) -> float | None:
    """Joules per token over the steps of several attempts."""
    energies = [attempt.per_token for attempt in attempts if attempt.per_token]
    return sum(part.energy_j for part in energies) / sum(part.tokens for part in energies) if energies else None


def highest(values: Iterable[float | None]) -> float | None:
    """Return the largest known value, None without any."""
    return max((value for value in values if value is not None), default=None)


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a value is missing, or without values."""
    all_values: Sequence[float | None] = list(values)
    present = [value for value in all_values if value is not None]
    return sum(present) if present and len(present) == len(all_values) else None
