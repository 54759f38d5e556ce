"""Parses a spool into rows. Pure and strict.

A block of lines is read at once and checked as a whole: nearly every line is one flat object of numbers. Any other
block is read line by line, which locates the fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Final, TypeGuard, TypeVar

from dscampaign.db.gpu_records import GPU_FIGURES, WHOLE_FIGURES, GpuDevice
from dscampaign.db.records import STEPS_BEYOND, STEPS_RESTARTED
from dscampaign.db.storable import MAX_TIME_S, MAX_WHOLE, is_time, is_whole

_BLOCK: Final = 1 << 16  # bytes read at once: a few hundred lines, which share the memory of their names
PREFIX: Final = 200  # characters of a bad line that its event keeps
_MAX_NAME: Final = 200  # characters, as metric_extra.name
_MAX_EVENT: Final = 50  # characters, so that event.kind holds them after "script."
_NUMBERS: Final = (float, bool, type(None))

# Whole numbers become floats as they are read: no metric overflows a column, and one type is quick to check.
_DECODER: Final = json.JSONDecoder(parse_int=float)


@dataclass(frozen=True)
class SpoolEvent:
    """A line with an event instead of a step."""

    name: str
    ts_s: float | None
    data: dict[str, Any]

    @property
    def message(self) -> str:
        """The text for people."""
        text = self.data.get("message")
        return text if isinstance(text, str) else ""

    @property
    def facts(self) -> dict[str, Any]:
        """The other fields."""
        return {name: value for name, value in self.data.items() if name != "message"} if self.message else self.data


@dataclass(frozen=True)
class BadLine:
    """A bad line, or a bad part of a line: its place in the spool, its fault, and its beginning."""

    offset: int
    length: int
    why: str
    prefix: str


@dataclass
class Batch:
    """The content of a stretch of any spool."""

    events: list[SpoolEvent] = field(default_factory=list)  # lines with events, in their order
    bad: list[BadLine] = field(default_factory=list)  # lines, or parts of them, that were set aside
    lines: int = 0  # how many lines that is
    length: int = 0  # how many bytes


B = TypeVar("B", bound=Batch)


@dataclass
class MetricBatch(Batch):
    """The rows of a stretch of metrics."""

    # the values of each line of a step by their names, `step` and `ts` among them
    rows: list[dict[str, float]] = field(default_factory=list)

    @cached_property
    def steps(self) -> dict[int, dict[str, float]]:
        """The values of each step: its lines are merged, and the first value of a name counts."""
        steps: dict[int, dict[str, float]] = {}
        for row in self.rows:
            first = steps.setdefault(int(row["step"]), row)
            if first is not row:
                steps[int(row["step"])] = {**row, **first}
        return steps


def parse(chunk: bytes, offset: int) -> MetricBatch:
    """Read the complete lines of a stretch at an offset; a last line without its newline is left for later."""
    batch = MetricBatch()
    for block in _blocks(chunk):
        rows = _plain(block)
        if rows is None:
            take_lines(block, offset, batch, _take)
            continue
        batch.rows += rows
        batch.lines += len(rows)
        batch.length += len(block)
    return batch


def take_lines(block: bytes, offset: int, batch: B, take: Callable[[bytes, B], str | None]) -> None:
    """Read complete lines of a batch at `offset` in the spool one by one, and set aside bad ones.

    `take` adds a line to the batch, and returns the fault of a bad one. A last line without its newline is left out.
    """
    for line in block.split(b"\n")[:-1]:
        if reason := take(line, batch):
            prefix = line.decode(errors="replace")[:PREFIX]
            batch.bad.append(BadLine(offset + batch.length, len(line) + 1, reason, prefix))
        batch.lines += 1
        batch.length += len(line) + 1


def take_event(row: dict[str, Any], batch: Batch) -> str | None:
    """Add an event to the batch; return the fault of a bad one."""
    name, ts_s = row.pop("event"), row.pop("ts", None)
    if not (isinstance(name, str) and _is_name(name) and len(name) <= _MAX_EVENT):
        return "an event without a name"
    when = float(ts_s) if is_time(ts_s) else None
    batch.events.append(SpoolEvent(name, when, {key: _whole(value) for key, value in row.items()}))
    return None


def _blocks(chunk: bytes) -> Iterator[bytes]:
    start, last = 0, chunk.rfind(b"\n") + 1
    while start < last:
        end = chunk.find(b"\n", start + _BLOCK, last) + 1 or last
        yield chunk[start:end]
        start = end


def _plain(block: bytes) -> list[dict[str, float]] | None:
    # As many objects as lines, none of them nested, every line's end between two braces and none inside a string (a raw
    # newline there is no JSON): then no line can have borrowed from its neighbour.
    lines = block.count(b"\n")
    if block.count(b"}\n{") != lines - 1:
        return None
    try:
        rows = _DECODER.decode("[" + block.decode().replace("}\n{", "},\n{") + "]")
    except (ValueError, RecursionError):
        return None
    if len(rows) != lines or set(map(type, rows)) != {dict}:
        return None
    names = set().union(*rows)
    if "event" in names or not all(map(_is_name, names)):
        return None
    flat = set(map(type, chain.from_iterable(map(dict.values, rows)))) == {float}
    return (
        rows
        if flat and all(map(_has_step, rows)) and all(0 <= row.get("ts", 0.0) <= MAX_TIME_S for row in rows)
        else None
    )


def _take(line: bytes, batch: MetricBatch) -> str | None:
    try:
        row = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return "not JSON"
    if type(row) is not dict:
        return "not a JSON object"
    if "event" in row:
        return take_event(row, batch)
    if not _has_step(row):
        return "no step"
    # Keep what can be stored, true as 1; null is the same as not there.
    wrong = [name for name, value in row.items() if not (_is_name(name) and isinstance(value, _NUMBERS))]
    if not (row.get("ts") is None or is_time(row["ts"]) or "ts" in wrong):
        wrong.append("ts")
    batch.rows.append({name: float(value) for name, value in row.items() if name not in wrong and value is not None})
    return f"not a number with a name: {', '.join(wrong)}"[:PREFIX] if wrong else None


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and abs(value) <= MAX_WHOLE and value.is_integer() else value


def _has_step(row: dict[str, Any]) -> bool:
    step = row.get("step")
    return type(step) is float and step.is_integer() and 0 <= step <= MAX_WHOLE


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MAX_NAME and name.isprintable()


# -- which lines count as steps: decided by the file alone, however it is cut into stretches ---------------------------

_LEAST_TARGET: Final = 10


def highest_step(target: int | None) -> float:
    """Return the highest plausible step of a run with this target: higher numbers count something else than steps."""
    return float("inf") if target is None else 2 * max(target, _LEAST_TARGET)


@dataclass
class StepOrder:
    """The order of the lines so far."""

    target: int | None = None  # steps that the run is to make, None if that is not known
    newest: int = -1  # the highest step, -1 before the first
    # by kind of event, the place of the first line that does not count among the others
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    _repeated_until: int = -1
    _marks: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, row: Mapping[str, float]) -> bool:
        """Return whether a line counts; it may add values to an earlier step that were not reported there and later."""
        step = int(row["step"])
        if self.target is not None and step > highest_step(self.target):
            self.found.setdefault(STEPS_BEYOND, {"step": step, "target": self.target})
            return False
        names = row.keys() - {"step", "ts"}
        if step <= self._repeated_until:
            return False
        if step < self.newest and (not names or any(self._mark(name)[1] >= step for name in names)):
            self.found.setdefault(STEPS_RESTARTED, {"step": step, "newest": self.newest})
            self._repeated_until = self.newest
            return False
        self.newest = max(self.newest, step)
        for name in names:
            highest, next_to_it = self._mark(name)
            if step > highest:
                self._marks[name] = step, highest
            elif next_to_it < step < highest:
                self._marks[name] = highest, step
        return True

    def _mark(self, name: str) -> tuple[int, int]:
        return self._marks.get(name, (-1, -1))


# -- the telemetry of a node ------------------------------------------------------------------------------------------

_MAX_GPU: Final = 2**15 - 1
_TEXTS: Final = ("node", "name", "uuid")
_DEVICE_FIGURES: Final = tuple(f.name for f in fields(GpuDevice) if f.name.endswith(("_gb", "_w", "_mhz")))

SampleRow = tuple[int | float | None, ...]  # GPU, time, span, then the figures in the order of ``GPU_FIGURES``


@dataclass
class GpuBatch(Batch):
    """The rows of a stretch of a node's telemetry."""

    # the known properties of each GPU, by the names of ``GpuDevice``
    devices: dict[int, dict[str, Any]] = field(default_factory=dict)
    # by GPU and time, so that none comes twice
    samples: dict[tuple[int, float], SampleRow] = field(default_factory=dict)


def parse_gpus(chunk: bytes, offset: int) -> GpuBatch:
    """Read the complete lines of a stretch at an offset; a last line without its newline is left for later."""
    batch = GpuBatch()
    take_lines(chunk, offset, batch, _take_gpus)
    return batch


def _take_gpus(line: bytes, batch: GpuBatch) -> str | None:
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
    if not (isinstance(devices, list) and all(isinstance(gpu, dict) and _is_gpu(gpu.get("gpu")) for gpu in devices)):
        return "not a list of GPUs"
    for gpu in devices:
        fields = {"node": row.get("node"), **gpu}
        texts = {name: text if isinstance(text := fields.get(name), str) else "" for name in _TEXTS}
        figures = {name: fields[name] if is_number(fields.get(name)) else None for name in _DEVICE_FIGURES}
        batch.devices.setdefault(gpu["gpu"], {**texts, **figures})
    return None


def _take_sample(row: dict[str, Any], batch: GpuBatch) -> str | None:
    gpus, ts_s, span_s = row.pop("gpu", None), row.pop("ts", None), row.pop("span_s", None)
    if not (isinstance(gpus, list) and all(map(_is_gpu, gpus)) and is_time(ts_s) and is_number(span_s)):
        return "not a sample"
    wrong = [name for name, column in row.items() if not _is_column(name, column, len(gpus))]
    columns = [row[name] if name in row and name not in wrong else [None] * len(gpus) for name in GPU_FIGURES]
    for index, gpu in enumerate(gpus):
        batch.samples.setdefault((gpu, ts_s), (gpu, ts_s, span_s, *(column[index] for column in columns)))
    return f"not a figure for each GPU: {', '.join(wrong)}"[:PREFIX] if wrong else None


def _is_column(name: str, column: object, length: int) -> bool:
    if name not in GPU_FIGURES or not isinstance(column, list) or len(column) != length:
        return False
    fits = is_whole if name in WHOLE_FIGURES else is_number
    return all(value is None or fits(value) for value in column)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether it is a number that can be stored."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_WHOLE


def _is_gpu(value: object) -> bool:
    return is_whole(value, most=_MAX_GPU)
