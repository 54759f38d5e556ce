"""Parses a node's telemetry into rows. Pure and strict.

A line is one JSON object: the GPUs that the node's agent found (``devices``), one sample of all of them (``gpu``, and a
list for each figure, in the same order), or something that happened (``event``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Final

from dscampaign.db.gpu_records import GPU_FIGURES, WHOLE_FIGURES, GpuDevice
from dscampaign.db.storable import MAX_WHOLE, is_time, is_whole

from .lines import PREFIX, Batch, take_event, take_lines

_MAX_GPU: Final = 2**15 - 1
_TEXTS: Final = ("node", "name", "uuid")
_DEVICE_FIGURES: Final = tuple(f.name for f in fields(GpuDevice) if f.name.endswith(("_gb", "_w", "_mhz")))

SampleRow = tuple[int | float | None, ...]
"""GPU, time, span, then the figures in the order of ``GPU_FIGURES``."""


@dataclass
class GpuBatch(Batch):
    """The rows of a stretch of a node's telemetry.

    Attributes:
        devices: the known properties of each GPU, by the names of ``GpuDevice``.
        samples: by GPU and time, so that none comes twice.
    """

    devices: dict[int, dict[str, Any]] = field(default_factory=dict)
    samples: dict[tuple[int, float], SampleRow] = field(default_factory=dict)


def parse(chunk: bytes, offset: int) -> GpuBatch:
    """Read the complete lines of a stretch at an offset; a last line without its newline is left for later."""
    batch = GpuBatch()
    take_lines(chunk, offset, batch, _take)
    return batch


def _take(line: bytes, batch: GpuBatch) -> str | None:
    if not line:  # the writer closed a line that had broken off
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return "not JSON"
    if type(row) is not dict:
        return "not a JSON object"
    if "event" in row:
        return take_event(row, batch)
    if "devices" in row:
        return _take_devices(row, batch)
    return _take_sample(row, batch)


def _take_devices(row: dict[str, Any], batch: GpuBatch) -> str | None:
    devices = row["devices"]
    if not (isinstance(devices, list) and all(isinstance(one, dict) and _is_gpu(one.get("gpu")) for one in devices)):
        return "not a list of GPUs"
    for one in devices:
        given = {"node": row.get("node"), **one}
        texts = {name: said if isinstance(said := given.get(name), str) else "" for name in _TEXTS}
        figures = {name: given[name] if _is_number(given.get(name)) else None for name in _DEVICE_FIGURES}
        batch.devices.setdefault(one["gpu"], {**texts, **figures})
    return None


def _take_sample(row: dict[str, Any], batch: GpuBatch) -> str | None:
    gpus, ts_s, span_s = row.pop("gpu", None), row.pop("ts", None), row.pop("span_s", None)
    if not (isinstance(gpus, list) and all(map(_is_gpu, gpus)) and is_time(ts_s) and _is_number(span_s)):
        return "not a sample"
    wrong = [name for name, column in row.items() if not _is_column(name, column, len(gpus))]
    columns = [row[name] if name in row and name not in wrong else [None] * len(gpus) for name in GPU_FIGURES]
    for index, gpu in enumerate(gpus):
        batch.samples.setdefault((gpu, ts_s), (gpu, ts_s, span_s, *(column[index] for column in columns)))
    return f"not a figure for each GPU: {', '.join(wrong)}"[:PREFIX] if wrong else None


def _is_column(name: str, column: object, length: int) -> bool:
    if name not in GPU_FIGURES or not isinstance(column, list) or len(column) != length:
        return False
    fits = is_whole if name in WHOLE_FIGURES else _is_number
    return all(value is None or fits(value) for value in column)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_WHOLE


def _is_gpu(value: object) -> bool:
    return is_whole(value, most=_MAX_GPU)
