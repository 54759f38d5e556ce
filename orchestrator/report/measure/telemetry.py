"""What GPUs did over time, of a few runs: a campaign may have a hundred million samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ....db import queries
from ....db.gpu_records import GpuSample
from ....db.store import Store
from ..compare.conditions import Condition

MOST_RUNS: Final = 3
MOST_GPUS: Final = 4
"""Of one run."""

POINTS: Final = 600


@dataclass(frozen=True)
class Trace:
    """One GPU of an attempt; lists of equal length, NaN where nothing is known.

    Attributes:
        name: of the run and the GPU.
        seconds: since its first sample.
        power_w, power_avg_w: momentary, and over one second.
    """

    name: str
    seconds: list[float]
    power_w: list[float]
    power_avg_w: list[float]
    temperature_c: list[float]


def read_traces(store: Store, conditions: Sequence[Condition]) -> list[Trace]:
    """The newest attempt of the first sampled run of each of the first conditions that have one."""
    runs = [next((run for run in one.runs if run.gpus.names and run.attempt_id), None) for one in conditions]
    chosen = [run for run in runs if run][:MOST_RUNS]
    traces = []
    with store.read() as conn:
        for run in chosen:
            attempt_id = run.attempt_id or 0
            for one in queries.gpu_devices(conn, attempt_id)[:MOST_GPUS]:
                samples = queries.gpu_trace(conn, attempt_id, one.node_rank, one.gpu, POINTS)
                traces += [_trace(run.name, samples)] if samples else []
    return traces


def _trace(run: str, samples: Sequence[GpuSample]) -> Trace:
    first = samples[0]

    def column(name: str) -> list[float]:
        values = (getattr(sample, name) for sample in samples)
        return [math.nan if value is None else float(value) for value in values]

    return Trace(
        name=f"{run}, GPU {first.gpu}" + (f" of node {first.node_rank}" if first.node_rank else ""),
        seconds=[sample.ts_s - first.ts_s for sample in samples],
        power_w=column("power_w"),
        power_avg_w=column("power_avg_w"),
        temperature_c=column("temperature_c"),
    )
