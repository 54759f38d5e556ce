"""Parses a spool into rows. Pure and strict.

Nearly every line is one flat object of numbers, so a block of lines is read at once and checked as a whole. A block
with anything else in it is read again line by line, which locates the fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from dscampaign.db.storable import MAX_TIME_S, MAX_WHOLE, is_time

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
        said = self.data.get("message")
        return said if isinstance(said, str) else ""

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
    """The content of a stretch of any spool.

    Attributes:
        events: Lines with events, in their order.
        bad: Lines, or parts of them, that were set aside.
        lines: How many lines that is.
        length: How many bytes.
    """

    events: list[SpoolEvent] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    lines: int = 0
    length: int = 0


B = TypeVar("B", bound=Batch)


@dataclass
class MetricBatch(Batch):
    """The rows of a stretch of metrics.

    Attributes:
        rows: The values of each line of a step by their names, `step` and `ts` among them.
    """

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
    """Read complete lines one by one into a batch, and set aside bad ones.

    Args:
        block: the lines; a last one without its newline is left out.
        offset: of the batch in the spool.
        batch: the lines before.
        take: adds a line to the batch; returns the fault of a bad one.
    """
    for line in block.split(b"\n")[:-1]:
        if why := take(line, batch):
            prefix = line.decode(errors="replace")[:PREFIX]
            batch.bad.append(BadLine(offset + batch.length, len(line) + 1, why, prefix))
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
    return rows if flat and all(map(_has_step, rows)) and all(map(_has_no_wrong_time, rows)) else None


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


def _has_no_wrong_time(row: dict[str, float]) -> bool:
    return 0 <= row.get("ts", 0.0) <= MAX_TIME_S


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    return 0 < len(name) <= _MAX_NAME and name.isprintable()
