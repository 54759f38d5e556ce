"""Writes steps in bulk, the one place that hands rows to the driver itself: every step of every run passes here.

Of a step that comes again the first value of a column counts, of a run's newest figures the last.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Float,
    Integer,
    Table,
    case,
    func,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
)

from dscampaign.db.records import METRIC_COLUMNS
from dscampaign.db.schema import StorableText, metric_extra, run_latest, step_metric
from dscampaign.db.store import dialect_of

Steps = Mapping[int, Mapping[str, float]]

_NAMES: Final = tuple(METRIC_COLUMNS)
_COLUMNS: Final = tuple(METRIC_COLUMNS.values())
_LINE_NAMES: Final = ("ts", *_NAMES)
_OWN_PLACE: Final = frozenset(("step", *_LINE_NAMES))
_ZERO: Final[ColumnElement[int]] = literal_column("0")
_ROWS: Final = 100  # an INSERT: half the time of one by one
_COPY_ROWS: Final = 200  # below, a private table costs more than it saves, and a thousand agents would make a thousand
_POSTGRES_TYPES: Final = {BigInteger: "int8", Float: "float8", Integer: "int4", StorableText: "text"}


def insert_steps(conn: Connection, attempt_id: int, steps: Steps) -> None:
    """Insert steps, or complete existing steps."""
    upsert(conn, step_metric, [(attempt_id, step, *_values(row)) for step, row in steps.items()])


def insert_extras(conn: Connection, attempt_id: int, steps: Steps) -> None:
    """Insert the values whose names have no column of their own; existing values stay."""
    names = set().union(*steps.values()) - _OWN_PLACE
    rows = [
        (attempt_id, step, name, None if math.isnan(row[name]) else row[name])
        for name in names
        for step, row in steps.items()
        if name in row
    ]
    upsert(conn, metric_extra, rows)


def upsert_latest(conn: Connection, key: tuple[int, int, int], step: int, newest: Mapping[str, float]) -> None:
    """Move a run's newest figures on, unless a higher attempt or step is there already.

    `key`: run id, attempt id and generation; `newest`: the last reported value of each name.
    """
    row = dict(zip(run_latest.c.keys(), (*key, step, *_values(newest)), strict=True))
    conn.execute(_moved_on(conn.dialect.name), row)


@lru_cache
def _moved_on(database: str) -> Any:
    """The statement that moves a run's newest figures on: to make it takes ten times as long as to run it."""
    new = dialect_of(database).insert(run_latest)
    old, come = run_latest.c, new.excluded
    same = old.generation == come.generation
    older = tuple_(old.generation, old.step) <= tuple_(come.generation, come.step)
    merged = _merge(first=come, second=old, also=same)
    moved = {name: come[name] for name in ("attempt_id", "generation", "step")}
    moved["ts_s"] = func.coalesce(come.ts_s, case((same, old.ts_s)))
    return new.on_conflict_do_update(index_elements=[old.run_id], set_={**moved, **merged}, where=older)


def upsert(conn: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows, all columns in the table's order, no key twice; existing rows stay, and steps are completed."""
    if conn.dialect.name != "sqlite" and len(rows) >= _COPY_ROWS:
        _copy(conn, table, rows)
        return
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        conn.exec_driver_sql(_insert_sql(table, conn.dialect.name, len(some)), tuple(chain.from_iterable(some)))


def _copy(conn: Connection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Postgres' fastest way: a binary COPY into a private table, from there one INSERT."""
    stage = f"stage_{table.name}"
    columns = ", ".join(table.columns.keys())  # by name: a migrated table has them in another order
    # Gone after it: behind a pooler the connection is soon another's, perhaps after an upgrade of the table.
    conn.exec_driver_sql(f"CREATE TEMP TABLE {stage} (LIKE {table.name}) ON COMMIT DROP")
    cursor: Any = conn.connection.cursor()
    with cursor, cursor.copy(f"COPY {stage} ({columns}) FROM STDIN (FORMAT binary)") as copy:
        copy.set_types([_POSTGRES_TYPES[type(column.type)] for column in table.columns])
        for row in rows:
            copy.write_row(row)
    conn.exec_driver_sql(_from_stage_sql(table, stage))
    conn.exec_driver_sql(f"DROP TABLE {stage}")


@lru_cache
def _from_stage_sql(table: Table, stage: str) -> str:
    """The INSERT as text for the driver: to compile it takes longer than an agent's usual rows."""
    kind, names = dialect_of("postgresql"), list(table.columns.keys())
    staged: Any = select(literal_column(", ".join(names))).select_from(text(stage))
    return str(_on_conflict(kind.insert(table).from_select(names, staged), table).compile(dialect=kind.dialect()))


@lru_cache(maxsize=4 * _ROWS)
def _insert_sql(table: Table, database: str, rows: int) -> str:
    """The INSERT as text for the driver: rows reach it as they are, many at once."""
    kind, place = dialect_of(database), "?" if database == "sqlite" else "%s"
    statement = kind.insert(table).values(dict.fromkeys(table.columns.keys(), literal_column("?")))
    marks = ["?"] * len(table.columns)
    head, tail = str(_on_conflict(statement, table).compile(dialect=kind.dialect())).split(f"({', '.join(marks)})")
    return head + ", ".join([f"({', '.join([place] * len(marks))})"] * rows) + tail


def _on_conflict(statement: Any, table: Table) -> Any:
    key = list(table.primary_key.columns)
    if table is not step_metric:
        return statement.on_conflict_do_nothing(index_elements=key)
    merged = _merge(first=table.c, second=statement.excluded, also=true())
    ts_s = func.coalesce(table.c.ts_s, statement.excluded.ts_s)
    return statement.on_conflict_do_update(index_elements=key, set_={"ts_s": ts_s, **merged})


def _values(row: Mapping[str, float]) -> tuple[float | None, ...]:
    """SQLite has no NaN, so it becomes NULL with its bit set in the mask."""
    values = tuple(map(row.get, _LINE_NAMES))
    if math.isfinite(sum(row.values())):
        return (*values, 0)
    mask = sum(1 << bit for bit, value in enumerate(values[1:]) if value is not None and not math.isfinite(value))
    return (*(None if value is None or math.isnan(value) else value for value in values), mask)


def _merge(first: Any, second: Any, also: ColumnElement[bool]) -> dict[str, ColumnElement[Any]]:
    chosen: dict[str, ColumnElement[Any]] = {}
    masks: list[ColumnElement[int]] = []
    for bit, name in enumerate(_COLUMNS):
        first_flag, second_flag = (_flag(row, 1 << bit) for row in (first, second))
        is_set = or_(first[name].is_not(None), first_flag != _ZERO)
        chosen[name] = case((is_set, first[name]), (also, second[name]))
        masks.append(case((is_set, first_flag), (also, second_flag), else_=_ZERO))
    return {**chosen, "nonfinite": reduce(operator.add, masks)}


def _flag(row: Any, flag: int) -> ColumnElement[int]:
    bit: ColumnElement[int] = row.nonfinite.bitwise_and(literal_column(str(flag)))
    return bit
