"""Rows of the store as records, and pieces of sequences that fit into a statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, select

_Row = TypeVar("_Row")
_Item = TypeVar("_Item")

_AT_ONCE: Final = 1000  # both databases limit the number of parameters

_SAME: Final = frozenset({"token", "executor", "desired", "code", "changes", "memory_key", "phase", "reason"})
"""Columns of text that thousands of rows share: each text is kept once."""


def fetch(
    conn: Connection,
    kind: type[_Row],
    table: Table,
    where: ColumnElement[bool] | None = None,
    *,
    order: Sequence[ColumnElement[Any]] = (),
    limit: int | None = None,
) -> list[_Row]:
    """Return rows as records: a record's fields are columns of the same names."""
    query, shared = _columns(kind, table)  # type: ignore[arg-type] # a class is hashable
    query = query if where is None else query.where(where)
    texts: dict[str, str] = {}
    found = []
    for row in conn.execute(query.order_by(*order).limit(limit)).all():
        values = list(row)
        for place in shared:
            if text := values[place]:
                values[place] = texts.setdefault(text, text)
        found.append(kind(*values))
    return found


@cache
def _columns(kind: type[_Row], table: Table) -> tuple[Select[Any], list[int]]:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return select(*(table.c[name] for name in names)), [place for place, name in enumerate(names) if name in _SAME]


def pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Split a sequence into pieces that fit into one statement."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))
