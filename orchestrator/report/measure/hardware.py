"""A run's use of its machine: memory, and GPU telemetry of the timed window. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dscampaign.db.gpu_records import AttemptGpus, GpuUse, highest, j_per_token, total
from dscampaign.db.records import AttemptRow
from dscampaign.db.series import Series

LEAST_SAMPLES: Final = 10
"""Of a GPU in the timed window: figures from fewer are flagged."""


@dataclass(frozen=True)
class Memory:
    """Highest memory of any GPU, in GB (10^9 bytes).

    Attributes:
        allocated, reserved: by tensors and by PyTorch's allocator, after the warm-up if that is reported separately.
        end: allocated after the last step.
        peak_reserved: the same over all steps: this has to fit.
        device: counted by the driver, other processes included.
        usable: available to the trainer; None without a GPU.
        host: of a node's memory: the highest sampled sum over the attempt's processes there (shared pages once), or, in
            a control group of the job's own, that group's peak, which counts cached files too.
    """

    allocated: float | None
    reserved: float | None
    peak_reserved: float | None
    device: float | None
    usable: float | None
    host: float | None
    end: float | None = None

    @property
    def share(self) -> float | None:
        """Part of the usable memory that PyTorch held at most."""
        return self.peak_reserved / self.usable if self.peak_reserved is not None and self.usable else None


@dataclass(frozen=True)
class GpuSummary:
    """Telemetry of all attempts of the present configuration; None if unknown.

    All but energy and errors cover the timed window: from the end of each attempt's warm-up to
    the end of its last step.

    Attributes:
        samples: fewest samples of a GPU in the window.
        util_pct: mean utilisation, which is not efficiency.
        power_w, power_peak_w, power_avg_peak_w: of a GPU: mean and highest of the momentary power that was sampled,
            highest over a second. The first may be below the last: a peak between two samples is missed.
        energy_j: of all GPUs, over whole attempts; unknown if an attempt with steps lacks samples.
        j_per_token: over the same window, if it is long enough.
        slowed, power_capped: highest share of the time in which heat or hardware, or the power limit, held down clocks.
    """

    names: tuple[str, ...]
    samples: int
    util_pct: float | None
    power_w: float | None
    power_peak_w: float | None
    power_avg_peak_w: float | None
    temperature_c: float | None
    energy_j: float | None
    j_per_token: float | None
    slowed: float | None
    power_capped: float | None
    ecc_errors: int | None

    @property
    def few(self) -> bool:
        """Whether the figures are from too few samples to rely on."""
        return bool(self.names) and self.samples < LEAST_SAMPLES


def memory_of(
    attempts: Sequence[AttemptRow], series: Series, gpus: Sequence[AttemptGpus], reported: Mapping[str, Any],
    speed: Mapping[str, Any],
) -> Memory:  # fmt: skip
    """Return the memory of the attempts with a run's present configuration; in the series it is the peak so far.

    `reported` and `speed` are the trainer's reports of the GPU's memory, and of the steps after the warm-up.
    """
    nodes = [node for attempt in attempts for node in attempt.evidence.get("nodes") or ()]
    host = [number(node.get("memory_peak_bytes")) for node in nodes if node.get("memory_peak_of")]
    steps = [np.asarray(series.figures[name]) for name in ("mem_allocated_gb", "mem_reserved_gb")]
    finite = [values[np.isfinite(values)] for values in steps]
    allocated, reserved = (float(values.max()) if values.size else None for values in finite)
    timed = [number(speed.get(name)) for name in ("mem_allocated_gb", "mem_reserved_gb")]
    return Memory(
        allocated=allocated if timed[0] is None else timed[0],
        reserved=reserved if timed[1] is None else timed[1],
        peak_reserved=highest([reserved, timed[1]]),
        device=highest(gpu.mem_used_max_gb for attempt in gpus for gpu in attempt.gpus),
        usable=number(reported.get("usable_gb")),
        host=None if (most := highest(host)) is None else most / 1e9,
        end=number(speed.get("mem_end_gb")),
    )


def gpus_of(attempts: Sequence[AttemptGpus], rows: Sequence[AttemptRow] = ()) -> GpuSummary:
    """Return the telemetry of a run's sampled attempts; `rows` are all attempts of its present configuration."""
    whole = [gpu for attempt in attempts for gpu in attempt.gpus]
    timed = [gpu for attempt in attempts for gpu in attempt.timed]
    fully_timed = [attempt.timed for attempt in attempts if len(attempt.timed) == len(attempt.gpus)]
    errors = [gpu.ecc_errors for gpu in whole if gpu.ecc_errors is not None]
    nodes = {attempt.attempt_id: len({gpu.node_rank for gpu in attempt.gpus}) for attempt in attempts}
    ran = [row for row in rows if row.id in nodes or (row.last_step or 0) > (row.start_step or 0)]
    are_covered = all(nodes.get(row.id, 0) >= row.nodes for row in ran)
    return GpuSummary(
        names=tuple(dict.fromkeys(gpu.name for gpu in whole if gpu.name)),
        samples=sum(min((gpu.samples for gpu in gpus), default=0) for gpus in fully_timed),
        util_pct=_mean(timed, lambda gpu: gpu.util_pct),
        power_w=_mean(timed, lambda gpu: gpu.power_w),
        power_peak_w=highest(gpu.power_peak_w for gpu in timed),
        power_avg_peak_w=highest(gpu.power_avg_peak_w for gpu in timed),
        temperature_c=highest(gpu.temperature_max_c for gpu in timed),
        energy_j=total(attempt.energy_j for attempt in attempts) if are_covered else None,
        j_per_token=j_per_token(attempts),
        slowed=highest(gpu.slowed for gpu in timed),
        power_capped=highest(gpu.power_capped for gpu in timed),
        ecc_errors=sum(errors) if errors else None,
    )


def _mean(gpus: Sequence[GpuUse], figure: Callable[[GpuUse], float | None]) -> float | None:
    pairs = [(value, gpu.sampled_s) for gpu in gpus if (value := figure(gpu)) is not None]
    spent_s = sum(seconds for _, seconds in pairs)
    return sum(value * seconds for value, seconds in pairs) / spent_s if spent_s else None


def number(value: object) -> float | None:
    """Return a reported value; None if it is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
