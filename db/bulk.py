"""Writes and reads of many rows at once: ten thousand runs are a handful of statements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    delete,
    select,
    update,
)

from . import schema
from .queries import of_run
from .records import (
    AttemptRow,
    NewAttempt,
    NewRun,
    RunRow,
)
from .rows import EMPTY, StoredDocument, fetch_among, fields_of, insert_rows, pieces, rows_among
from .states import AttemptState, Cause, RunState
from .store import database_now, now_s


def insert_runs(conn: Connection, campaign_id: int, new_runs: Sequence[NewRun]) -> None:
    """Record runs. A name that the campaign already has makes the transaction a StaleWrite."""
    fixed = {"campaign_id": campaign_id, "desired": "run", "generation": 0, "retry_epoch": 0}
    fixed["updated_s"] = database_now(conn)
    rows = [{**fields_of(new), **fixed} for new in new_runs]
    if rows:
        insert_rows(conn, schema.run, rows)


def explain_waiting(conn: Connection, run_ids: Sequence[int], reason: str, cause: Cause | None) -> None:
    """Record why runs wait in the queue, if they still do."""
    run = schema.run.c
    values = {"reason": reason, "cause": cause, "updated_s": now_s(conn)}
    for some in pieces(run_ids):
        waiting = and_(run.id.in_(some), run.state == RunState.QUEUED)
        conn.execute(update(schema.run).where(waiting).values(values))


def queue_runs(conn: Connection, token: str) -> None:
    """Record that the runs of a submission wait in the queue."""
    of_token = select(schema.attempt.c.run_id).where(schema.attempt.c.token == token)
    values = {"state": RunState.QUEUED, "not_before_s": None, "updated_s": now_s(conn)}
    conn.execute(update(schema.run).where(schema.run.c.id.in_(of_token)).values(values))


_UNBEGUN: Final[dict[str, Any]] = dict.fromkeys(
    ("job_id", "submit_time_s", "last_step", "failure_class", "heartbeat_s", "started_s", "ended_s")
)
"""The columns of an attempt that are empty before it is submitted."""


def insert_attempts(conn: Connection, new: Sequence[NewAttempt]) -> list[AttemptRow]:
    """Record attempts before they are submitted, make each its run's newest, and return them in this order.

    A generation that a run already has makes the transaction a StaleWrite: another process decided first.
    """
    if not new:
        return []
    zero: dict[str, Any] = {"evidence": EMPTY, "gpu_seconds": 0.0, "spool_offset": 0, "created_s": database_now(conn)}
    rows = [{**fields_of(attempt), **zero} for attempt in new]
    insert_rows(conn, schema.attempt, rows)
    run, row = schema.run.c, schema.attempt.c
    of_tokens = row.token.in_({attempt.token for attempt in new})
    for generation in {attempt.generation for attempt in new}:
        run_ids = select(row.run_id).where(of_tokens, row.generation == generation)
        older = and_(run.id.in_(run_ids), run.generation < generation)
        conn.execute(update(schema.run).where(older).values(generation=generation))
    recorded = conn.execute(select(row.run_id, row.generation, row.id).where(of_tokens))
    ids = {(run_id, generation): attempt_id for run_id, generation, attempt_id in recorded}
    return [AttemptRow(id=ids[values["run_id"], values["generation"]], **values, **_UNBEGUN) for values in rows]


def withdraw_attempts(conn: Connection, attempt_ids: Collection[int]) -> None:
    """Delete attempts that were surely not submitted, as if they had never been decided.

    Their events go with them: an intent that comes to nothing in every pass would bury all others.
    """
    table, events = schema.attempt, schema.events
    conn.execute(delete(events).where(events.c.attempt_id.in_(list(attempt_ids))))
    rows = conn.execute(select(table.c.run_id, table.c.generation).where(table.c.id.in_(list(attempt_ids)))).all()
    conn.execute(delete(table).where(table.c.id.in_(list(attempt_ids))))
    run = schema.run.c
    newest = and_(run.id == bindparam("of_run", type_=BigInteger), run.generation == bindparam("of_generation"))
    values = {"generation": bindparam("before", type_=Integer), "state": RunState.PENDING}
    of_rows = [{"of_run": run_id, "of_generation": newer, "before": newer - 1} for run_id, newer in rows]
    if of_rows:
        conn.execute(update(schema.run).where(newest).values(values), of_rows)


def mark_queued(conn: Connection, job_ids: Mapping[int, str]) -> list[int]:
    """Record the jobs of attempts, by id, that were only intended until now; return the ids of these attempts."""
    row, now = schema.attempt.c, database_now(conn)
    intended = select(row.id).where(row.state == AttemptState.INTENT).with_for_update()
    ids = [found.id for found in rows_among(conn, intended, row.id, list(job_ids))]
    if ids:
        values = {"job_id": bindparam("job", type_=row.job_id.type), "submit_time_s": now, "state": AttemptState.QUEUED}
        rows = [{"of_attempt": attempt_id, "job": job_ids[attempt_id]} for attempt_id in ids]
        conn.execute(
            update(schema.attempt).where(row.id == bindparam("of_attempt", type_=BigInteger)).values(values), rows
        )
    return ids


_DECIDES: Final = ("config_hash", "target_step", "code", "desired", "generation", "retry_epoch")
_decides = attrgetter(*_DECIDES)

RunMark = tuple[Any, ...]
"""The columns that a decision about a run depends on; its configuration as text, which is not parsed for it."""


def mark_of(run: RunRow) -> RunMark:
    """Return the mark of a run."""
    return (run.config.text if isinstance(run.config, StoredDocument) else run.config, *_decides(run))


def run_marks(conn: Connection, campaign_id: int, run_ids: Sequence[int]) -> dict[int, RunMark]:
    """Return the marks of runs of a campaign, by id.

    They stay until this transaction ends: a process that records a spec changes the campaign first.
    """
    conn.execute(
        select(schema.campaign.c.id).where(schema.campaign.c.id == campaign_id).with_for_update(key_share=True)
    )
    run = schema.run.c
    query = select(run.id, cast(run.config, Text), *(run[name] for name in _DECIDES))
    return {run_id: tuple(mark) for run_id, *mark in rows_among(conn, query, run.id, run_ids)}


def attempts_of(conn: Connection, attempt_ids: Sequence[int]) -> list[AttemptRow]:
    """Return attempts by id, in the order of the ids; missing attempts are left out."""
    rows = {row.id: row for row in fetch_among(conn, AttemptRow, schema.attempt, schema.attempt.c.id, attempt_ids)}
    return [rows[attempt_id] for attempt_id in attempt_ids if attempt_id in rows]


def lock_attempts(conn: Connection, attempt_ids: Sequence[int]) -> dict[int, AttemptState]:
    """Return the states of attempts, by id; nobody else changes them before this transaction ends."""
    row = schema.attempt.c
    query = select(row.id, row.state).with_for_update()
    return {found.id: found.state for found in rows_among(conn, query, row.id, attempt_ids)}


def evidences(conn: Connection, attempt_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the evidence of attempts, by id."""
    row = schema.attempt.c
    rows = rows_among(conn, select(row.id, row.evidence), row.id, attempt_ids)
    return {attempt_id: dict(evidence) for attempt_id, evidence in rows}


def change_attempts(conn: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Set columns of attempts, of each by its id to values of its own."""
    _change(conn, schema.attempt, changes)


def change_runs(conn: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Set columns of runs likewise, with the time of the change."""
    now = database_now(conn)
    _change(conn, schema.run, {run_id: {"updated_s": now, **of_run(values)} for run_id, values in changes.items()})


def _change(conn: Connection, table: Table, changes: Mapping[int, Mapping[str, Any]]) -> None:
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row_id, values in changes.items():
        alike[tuple(sorted(values))].append({"of_row": row_id, **values})
    row = update(table).where(table.c.id == bindparam("of_row", type_=BigInteger))
    for columns, rows in alike.items():
        conn.execute(row.values({name: bindparam(name, type_=table.c[name].type) for name in columns}), rows)
