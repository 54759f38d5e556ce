"""An export as Parquet, row group by row group: columns with types, and missing told from NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import IO, Any, Final

from ..campaign.documents import SCHEMA_VERSION
from ..errors import UserError
from .columns import Kind, kinds, typed

ROWS_A_GROUP: Final = 1 << 16


def write_parquet(
    stream: IO[bytes], campaign: str, what: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Writes a Parquet file; returns the number of rows. Raises UserError if pyarrow is not installed.

    A figure that was not reported is null, one that is not a number is NaN. Times are UTC timestamps in microseconds;
    structures are JSON text.
    """
    pa, parquet = require_pyarrow()
    runs = list(rows) if what == "runs" else None
    found = kinds(what, columns, runs or ())
    made = {
        Kind.TEXT: pa.string(),
        Kind.WHOLE: pa.int64(),
        Kind.REAL: pa.float64(),
        Kind.FLAG: pa.bool_(),
        Kind.TIME: pa.timestamp("us", tz="UTC"),
        Kind.STRUCTURE: pa.string(),
    }
    about = {"schema_version": str(SCHEMA_VERSION), "campaign": campaign, "what": what}
    schema = pa.schema([(n, made[k]) for n, k in zip(columns, found, strict=True)], metadata=about)
    number, left = 0, iter(rows if runs is None else runs)
    with parquet.ParquetWriter(stream, schema) as writer:
        while group := list(islice(left, ROWS_A_GROUP)):
            arrays = [
                pa.array([_stored(value, kind) for value in values], type=made[kind])
                for values, kind in zip(zip(*group, strict=True), found, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS_A_GROUP)
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


def _stored(value: Any, kind: Kind) -> Any:
    if value is None:
        return None
    if kind is Kind.TIME:
        return round(value * 1e6) if math.isfinite(value) else None
    if kind is Kind.STRUCTURE:
        return json.dumps(value)
    return typed(value, kind)
