"""An export as Parquet, row group by row group: columns with types, and null for a missing value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import IO, Any

from dscampaign.orchestrator.campaign.documents import SCHEMA_VERSION
from dscampaign.orchestrator.errors import UserError

from .columns import Dtype, typed, typed_groups
from .rows import Row


def write_parquet(stream: IO[bytes], campaign: str, what: str, columns: Sequence[str], rows: Iterable[Row]) -> int:
    """Write a Parquet file; return the number of rows. Raise UserError if pyarrow is not installed.

    A missing figure is null, a figure that is not a number NaN. Times are UTC timestamps in microseconds;
    structures are JSON text.
    """
    pa, parquet = require_pyarrow()
    found, groups = typed_groups(what, columns, rows)
    made = {
        Dtype.TEXT: pa.string(),
        Dtype.WHOLE: pa.int64(),
        Dtype.REAL: pa.float64(),
        Dtype.FLAG: pa.bool_(),
        Dtype.TIME: pa.timestamp("us", tz="UTC"),
        Dtype.STRUCTURE: pa.string(),
    }
    about = {"schema_version": str(SCHEMA_VERSION), "campaign": campaign, "what": what}
    schema = pa.schema([(n, made[k]) for n, k in zip(columns, found, strict=True)], metadata=about)
    number = 0
    with parquet.ParquetWriter(stream, schema) as writer:
        for group in groups:
            arrays = [
                pa.array([_stored(value, kind) for value in values], type=made[kind])
                for values, kind in zip(zip(*group, strict=True), found, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            number += len(group)
    return number


def require_pyarrow() -> tuple[Any, Any]:
    """The packages that Parquet needs; raises UserError if they are not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("Parquet needs pyarrow, which is not installed", "pip install 'dscampaign[parquet]'") from error
    return pa, pa.parquet


def _stored(value: Any, kind: Dtype) -> Any:
    if value is None:
        return None
    if kind is Dtype.TIME:
        moment_s = typed(value, kind)
        return None if moment_s is None else round(moment_s * 1e6)
    if kind is Dtype.STRUCTURE:
        return json.dumps(value)
    return typed(value, kind)
