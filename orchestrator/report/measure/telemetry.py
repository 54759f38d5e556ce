"""Telemetry of single GPUs, of a few runs: a campaign may have a hundred million samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dscampaign.db import queries
from dscampaign.db.gpu_records import GpuDevice, GpuSample, GpuUse
from dscampaign.db.store import Store

from .run import MeasuredRun

MOST_GPUS: Final = 4
"""Of one run."""

POINTS: Final = 600


@dataclass(frozen=True)
class GpuTrace:
    """One GPU of an attempt over time; power is momentary, and averaged over one second.

    `seconds` count from its first sample. The lists have equal length, with NaN for unknown values.
    """

    run: str
    name: str
    seconds: list[float]
    power_w: list[float]
    power_avg_w: list[float]
    temperature_c: list[float]


@dataclass(frozen=True)
class GpuDetails:
    """The GPUs of the newest attempts: devices by run; traces of the runs that are drawn."""

    devices: Mapping[str, tuple[GpuDevice, ...]]
    uses: tuple[tuple[str, GpuUse], ...]
    traces: tuple[GpuTrace, ...]


def read_gpu_details(store: Store, runs: Sequence[MeasuredRun], drawn: Sequence[MeasuredRun]) -> GpuDetails:
    """Read the devices of all runs, and the samples of drawn runs, which have an attempt."""
    uses, traces = [], []
    with store.read() as conn:
        devices = {
            run.name: tuple(queries.gpu_devices(conn, run.attempt_id)) for run in runs if run.attempt_id is not None
        }
        for run in drawn:
            attempt_id = run.attempt_id or 0
            used = queries.attempt_gpus(conn, attempt_id)
            uses += [(run.name, gpu) for gpu in (used.gpus if used else ())]
            for one in devices[run.name][:MOST_GPUS]:
                samples = queries.gpu_trace(conn, attempt_id, one.node_rank, one.gpu, POINTS)
                traces += [_trace(run.name, samples)] if samples else []
    return GpuDetails(devices, tuple(uses), tuple(traces))


def _trace(run: str, samples: Sequence[GpuSample]) -> GpuTrace:
    first = samples[0]

    def column(name: str) -> list[float]:
        values = (getattr(sample, name) for sample in samples)
        return [math.nan if value is None else float(value) for value in values]

    return GpuTrace(
        run=run,
        name=f"{run}, GPU {first.gpu}" + (f" of node {first.node_rank}" if first.node_rank else ""),
        seconds=[sample.ts_s - first.ts_s for sample in samples],
        power_w=column("power_w"),
        power_avg_w=column("power_avg_w"),
        temperature_c=column("temperature_c"),
    )
