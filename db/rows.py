"""Rows of the store as records, and as many at a time as a statement takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, select

_Row = TypeVar("_Row")
_Item = TypeVar("_Item")

_AT_ONCE: Final = 1000  # both databases limit the number of parameters

_SAME: Final = frozenset({"token", "executor", "desired", "code", "changes", "memory_key", "phase", "reason"})
"""Columns of text in which thousands of rows say the same: it is kept once."""


def fetch(
    conn: Connection,
    kind: type[_Row],
    table: Table,
    where: ColumnElement[bool] | None = None,
    *,
    order: Sequence[ColumnElement[Any]] = (),
    limit: int | None = None,
) -> list[_Row]:
    """Rows as records: a record's fields are columns of the same names."""
    query: Select[Any] = select(*(table.c[field.name] for field in fields(kind)))  # type: ignore[arg-type]
    query = query if where is None else query.where(where)
    shared = [place for place, field in enumerate(fields(kind)) if field.name in _SAME]  # type: ignore[arg-type]
    texts: dict[str, str] = {}
    found = []
    for row in conn.execute(query.order_by(*order).limit(limit)).all():
        values = list(row)
        for place in shared:
            if text := values[place]:
                values[place] = texts.setdefault(text, text)
        found.append(kind(*values))
    return found


def pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """As many of them at a time as one statement takes."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))
