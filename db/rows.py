"""Rows of the store as records, pieces of sequences that fit into a statement, and JSON that is parsed on access.

A pass over ten thousand runs needs the configurations of a few, and parsed they take ten times the memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Final, TypeVar

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Table,
    Text,
    TypeDecorator,
    cast,
    insert,
    select,
    type_coerce,
)

_Row = TypeVar("_Row")
_Item = TypeVar("_Item")

_AT_ONCE: Final = 1000  # both databases limit the number of parameters
_SAME: Final = frozenset({"token", "executor", "desired", "code", "changes", "memory_key", "phase", "reason"})
"""Columns of text that thousands of rows share: each text is kept once."""


def fetch(
    conn: Connection,
    kind: type[_Row],
    table: Table,
    condition: ColumnElement[bool] | None = None,
    *,
    order: Sequence[ColumnElement[Any]] = (),
    limit: int | None = None,
) -> list[_Row]:
    """Return rows as records: a record's fields are columns of the same names."""
    query, names, shared = _columns(kind, table)  # type: ignore[arg-type] # a class is hashable
    query = query if condition is None else query.where(condition)
    texts: dict[str, str] = {}
    records = []
    for row in conn.execute(query.order_by(*order).limit(limit)).all():
        values = list(row)
        for place in shared:
            if text := values[place]:
                values[place] = texts.setdefault(text, text)
        records.append(kind(**dict(zip(names, values, strict=True))))
    return records


@cache
def _columns(kind: type[_Row], table: Table) -> tuple[Select[Any], list[str], list[int]]:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    places = [place for place, name in enumerate(names) if name in _SAME]
    return select(*(table.c[name] for name in names)), names, places


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record to insert."""
    names, values = _fields(type(record))  # type: ignore[arg-type] # a class is hashable
    return dict(zip(names, values(record), strict=True))


@cache
def _fields(kind: type[Any]) -> tuple[list[str], Callable[[Any], tuple[Any, ...]]]:
    names = [field.name for field in fields(kind)]
    return names, attrgetter(*names)


def rows_among(
    conn: Connection, query: Select[Any], column: ColumnElement[Any], values: Sequence[Any]
) -> Iterator[Any]:
    """Yield the rows of a query that have any of these values; their number is not limited."""
    return (row for some in pieces(values) for row in conn.execute(query.where(column.in_(some))))


def fetch_among(
    conn: Connection,
    kind: type[_Row],
    table: Table,
    column: ColumnElement[Any],
    values: Sequence[Any],
    order: Sequence[ColumnElement[Any]] = (),
) -> Iterator[_Row]:
    """Yield these rows as records, piece by piece of the values in this order."""
    return (row for some in pieces(values) for row in fetch(conn, kind, table, column.in_(some), order=order))


def insert_rows(conn: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows that all have the same columns; the driver gets them at once, without SQLAlchemy's work for each."""
    statement, binds, by_place = _insert(table, tuple(rows[0]), conn.dialect)
    columns = [_bound([row[name] for row in rows], bind) for name, bind in binds]
    values = list(zip(*columns, strict=True))
    names = [name for name, _ in binds]
    conn.exec_driver_sql(statement, values if by_place else [dict(zip(names, row, strict=True)) for row in values])


def _bound(values: list[Any], bind: Callable[[Any], Any] | None) -> list[Any]:
    """Return a column's values as the driver takes them; thousands of rows may share the same object."""
    if bind is None:
        return values
    first = values[0]
    if all(value is first for value in values):
        return [bind(first)] * len(values)
    return list(map(bind, values))


@cache
def _insert(table: Table, names: Sequence[str], dialect: Dialect) -> tuple[str, list[tuple[str, Any]], bool]:
    compiled = insert(table).compile(dialect=dialect, column_keys=names)
    ordered = compiled.positiontup or names
    binds = [(name, table.c[name].type.dialect_impl(dialect).bind_processor(dialect)) for name in ordered]
    return str(compiled), binds, bool(compiled.positiontup)


def pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """Split a sequence into pieces that fit into one statement."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


class StoredDocument(Mapping[str, Any]):
    """A JSON object, parsed at the first access; `text` is its JSON."""

    __slots__ = ("_found", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __repr__(self) -> str:
        return repr(self._parsed())

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        """Return a dictionary of its own, for `dataclasses.asdict` of a row."""
        return {**json.loads(self.text)}

    def _parsed(self) -> dict[str, Any]:
        if self._found is None:
            self._found = {**json.loads(self.text)}
        return self._found


EMPTY: Final = StoredDocument("{}")  # shared by all empty rows: nobody can change it


class DocumentType(TypeDecorator[Mapping[str, Any]]):
    """A column of JSON objects, read as `StoredDocument`."""

    impl = JSON
    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select text, which no driver parses."""
        return type_coerce(cast(column, Text), self)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:
        """Write JSON; a document goes as it is, so a document of two rows is encoded once."""
        encode = self.impl_instance.bind_processor(dialect)
        assert encode is not None

        def bound(value: Mapping[str, Any] | None) -> Any:
            if isinstance(value, StoredDocument):
                return value.text
            return encode(None if value is None else dict(value))

        return bound

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Mapping[str, Any] | None]:  # noqa: ARG002
        """Wrap the text."""
        return lambda text: EMPTY if text == "{}" else None if text is None else StoredDocument(text)
