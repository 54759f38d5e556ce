"""What the columns of an export hold: types for formats that have them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from ...db.gpu_records import GpuSample
from ...db.records import AttemptRow, EventRow, MetricRow


class Kind(Enum):
    """What a column holds; any of its values may be missing."""

    TEXT = "text"
    WHOLE = "whole"
    REAL = "real"
    FLAG = "flag"
    TIME = "time"
    """Seconds since 1970, UTC."""
    STRUCTURE = "structure"


_TIMES: Final = frozenset({"ts_s", "created_s", "submit_time_s", "heartbeat_s", "started_s", "ended_s"})
_RECORDS: Final[dict[str, type]] = {"steps": MetricRow, "attempts": AttemptRow, "gpus": GpuSample, "events": EventRow}
_WHOLE_OF_RUNS: Final = frozenset(
    {"step", "target_step", "global_batch", "micro_batch", "accumulation", "world_size", "attempts"}
)
_REAL_OF_RUNS: Final = frozenset({"loss", "eval_loss", "tokens_per_s", "mem_reserved_gb", "mfu", "predicted_gb"})


def kinds(what: str, columns: Sequence[str], rows: Sequence[Sequence[Any]] = ()) -> list[Kind]:
    """What each column of a table holds.

    Args:
        what: The table.
        columns: Names of its columns.
        rows: Its rows, where the matrix decides what a column holds: of `runs`.
    """
    if what == "runs":
        return [_kind_of_runs(name, [row[index] for row in rows]) for index, name in enumerate(columns)]
    known = _known(_RECORDS[what])
    others = {"generation": Kind.WHOLE, "run": Kind.TEXT, "node": Kind.TEXT, "changes": Kind.TEXT}
    return [known.get(name) or others.get(name, Kind.REAL) for name in columns]  # a script's own figures


def typed(value: Any, kind: Kind) -> Any:
    """A value of a row as its column's kind has it: figures of `runs` that are none come as text."""
    if kind is Kind.REAL and isinstance(value, str | int):
        return float(value)
    return str(value) if kind is Kind.TEXT and value is not None else value


def _known(record: type) -> dict[str, Kind]:
    hints = get_type_hints(record)
    return {field.name: _kind_of(field.name, hints[field.name]) for field in fields(record)}


def _kind_of(name: str, hint: Any) -> Kind:
    if name in _TIMES:
        return Kind.TIME
    parts = [part for part in get_args(hint) if part is not type(None)] if _is_union(hint) else [hint]
    if float in parts:
        return Kind.REAL
    if int in parts:
        return Kind.WHOLE
    structured = any((get_origin(part) or part) in (dict, list, tuple) for part in parts)
    return Kind.STRUCTURE if structured else Kind.TEXT


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _kind_of_runs(name: str, values: Sequence[Any]) -> Kind:
    if name in _WHOLE_OF_RUNS:
        return Kind.WHOLE
    if name in _REAL_OF_RUNS:
        return Kind.REAL
    given = {type(value) for value in values if value is not None}
    if not given or not given <= {bool, int, float}:
        return Kind.TEXT
    if given == {bool}:
        return Kind.FLAG
    return Kind.WHOLE if given == {int} else Kind.TEXT if bool in given else Kind.REAL
