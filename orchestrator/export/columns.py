"""Types of an export's columns, for formats that have types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Final

from sqlalchemy import JSON, Column, Float, Integer

from dscampaign.db import schema
from dscampaign.db.storable import MAX_TIME_S
from dscampaign.db.stored_document import DocumentType

from .rows import Row

ROWS_A_GROUP: Final = 1 << 16


class Dtype(Enum):
    """The type of a column; any value may be missing."""

    TEXT = "text"
    WHOLE = "whole"
    REAL = "real"
    FLAG = "flag"
    TIME = "time"
    """Seconds since 1970, UTC."""
    STRUCTURE = "structure"


_TIMES: Final = frozenset({"ts_s", "created_s", "submit_time_s", "heartbeat_s", "started_s", "ended_s"})
_TABLES: Final = {
    "steps": (schema.run_metric,),
    "runs": (schema.attempt, schema.run, schema.run_latest),
    "attempts": (schema.attempt,),
    "gpus": (schema.gpu_sample,),
    "events": (schema.events,),
}
_JOINED: Final = {"run": Dtype.TEXT, "node": Dtype.TEXT, "changes": Dtype.TEXT, "generation": Dtype.WHOLE}
"""Columns from another table than the rows'."""


def typed_groups(what: str, columns: Sequence[str], rows: Iterable[Row]) -> tuple[list[Dtype], Iterator[Sequence[Row]]]:
    """Return the type of each column, and the rows in groups; the columns of `runs` depend on the rows."""
    known = _JOINED | {column.name: _kind_of(column) for table in _TABLES[what] for column in table.columns}
    found = [known.get(name, Dtype.REAL) for name in columns]  # a script's own figures
    if what == "runs":
        rows, known["global_batch"] = list(rows), Dtype.WHOLE
        found = [known.get(name) or _kind_of_values([row[i] for row in rows]) for i, name in enumerate(columns)]
    left = iter(rows)
    return found, iter(lambda: list(islice(left, ROWS_A_GROUP)), [])


def typed(value: Any, kind: Dtype) -> Any:
    """A value of a row as its column's type has it; in `runs`, a figure that is not finite comes as its name.

    A time that no calendar has, of a store that an earlier version filled, is none.
    """
    if kind is Dtype.TIME:
        return value if value is not None and abs(value) <= MAX_TIME_S else None
    if kind is Dtype.REAL and isinstance(value, str | int):
        return float(value)
    return str(value) if kind is Dtype.TEXT and value is not None else value


def _kind_of(column: Column[Any]) -> Dtype:
    if column.name in _TIMES:
        return Dtype.TIME
    types = {Float: Dtype.REAL, Integer: Dtype.WHOLE, JSON: Dtype.STRUCTURE, DocumentType: Dtype.STRUCTURE}
    return next((kind for base, kind in types.items() if isinstance(column.type, base)), Dtype.TEXT)


def _kind_of_values(values: Sequence[Any]) -> Dtype:
    given = {type(value) for value in values if value is not None}
    if not given or not given <= {bool, int, float}:
        return Dtype.TEXT
    if given == {bool}:
        return Dtype.FLAG
    return Dtype.WHOLE if given == {int} else Dtype.TEXT if bool in given else Dtype.REAL
