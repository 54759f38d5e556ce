"""A campaign's rows as Arrow record batches: columns with types, and null for a missing value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import IO, Any, Final

from sqlalchemy import Float, Integer

from dscampaign.db import schema
from dscampaign.db.storable import MAX_TIME_S
from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION
from dscampaign.orchestrator.errors import UserError

from .rows import Row

ROWS_A_BATCH: Final = 1 << 16

_TIMES: Final = frozenset({"ts_s", "created_s", "submit_time_s", "heartbeat_s", "started_s", "ended_s"})
_TABLES: Final = {
    "steps": (schema.run_metric,),
    "runs": (schema.attempt, schema.run, schema.run_latest),
    "attempts": (schema.attempt,),
    "gpus": (schema.attempt, schema.gpu_sample),
    "events": (schema.events,),
}
_FROM_ELSEWHERE: Final = ("run", "node", "changes")
"""Texts from another table than the rows'."""


def write_parquet(stream: IO[bytes], campaign: str, kind: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Write a Parquet file, a row group for each batch; return the number of rows."""
    pa = require_pyarrow()
    schema, record_batches = batches(kind, columns, rows)
    about = {"schema_version": str(SCHEMA_VERSION), "campaign": campaign, "what": kind}
    number = 0
    with pa.parquet.ParquetWriter(stream, schema.with_metadata(about)) as writer:
        for batch in record_batches:
            writer.write_batch(batch)
            number += len(batch)
    return number


def require_pyarrow() -> Any:
    """Return the package; raise UserError if it is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet needs pyarrow, which is not installed", "pip install 'dscampaign[parquet]'") from error
    return pa


def batches(rows_of: str, columns: Sequence[str], rows: Iterable[Row]) -> tuple[Any, Iterator[Any]]:
    """Return the Arrow schema, and the rows as record batches.

    A missing figure is null, a figure that is not a number NaN. Times are UTC timestamps in microseconds; structures
    are JSON text. A script's own figures are floats, and parameters have the type of their values.
    """
    import pyarrow as pa

    time, text = pa.timestamp("us", tz="UTC"), pa.string()
    types_by_name = dict.fromkeys(_FROM_ELSEWHERE, text)
    for column in (column for table in _TABLES[rows_of] for column in table.columns):
        by_class = {Float: pa.float64(), Integer: pa.int64()}
        plain = next((kind for base, kind in by_class.items() if isinstance(column.type, base)), text)
        types_by_name[column.name] = time if column.name in _TIMES else plain
    if rows_of == "runs":
        rows = list(rows)
        by_python = {frozenset((int,)): pa.int64(), frozenset((bool,)): pa.bool_()}
        by_python |= dict.fromkeys(map(frozenset, ((float,), (int, float))), pa.float64())
        for place, name in enumerate(columns):
            python_types = frozenset(type(row[place]) for row in rows if row[place] is not None)
            types_by_name.setdefault(name, by_python.get(python_types, text))
    types = [types_by_name.get(name, pa.float64()) for name in columns]
    stored: dict[Any, Callable[[Any], Any]] = {time: _microseconds, text: _text, pa.float64(): float}
    convert = [stored.get(kind, lambda value: value) for kind in types]
    schema, left = pa.schema(list(zip(columns, types, strict=True))), iter(rows)

    def batch(group: Sequence[Row]) -> Any:
        arrays = [
            pa.array([None if value is None else to(value) for value in values], type=kind)
            for values, kind, to in zip(zip(*group, strict=True), types, convert, strict=True)
        ]
        return pa.record_batch(arrays, schema=schema)

    return schema, map(batch, iter(lambda: list(islice(left, ROWS_A_BATCH)), []))


def _microseconds(time_s: float) -> int | None:
    """Return a time; None if no calendar has it, as in a store of an earlier version."""
    return round(time_s * 1e6) if abs(time_s) <= MAX_TIME_S else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
