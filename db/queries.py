"""What this program asks the store: small functions on a connection. Metrics and leases have their own files.

Updates are conditional: they say which states they expect and return False when the row has moved on, which means
that somebody else was faster and the caller should look again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, delete, func, insert, select, update

from . import schema
from .gpu_queries import attempt_gpus, gpu_devices, gpu_samples, gpu_trace, iter_gpu_samples, node_offsets, run_gpus
from .leases import acquire_lease, read_lease, release_lease, renew_lease, report_pass
from .metrics import extra_names, iter_metrics, latest, metrics, step_times
from .records import (
    ACTIVE_ATTEMPT,
    OPENED_ELSEWHERE,
    AttemptRow,
    AttemptState,
    CampaignRow,
    CheckpointRow,
    EventRow,
    MemoryObservation,
    NewAttempt,
    NewRun,
    RunRow,
    RunState,
    RunStatus,
)
from .store import insert_into, now_s

__all__ = [  # what other modules here have
    "acquire_lease",
    "attempt_gpus",
    "extra_names",
    "gpu_devices",
    "gpu_samples",
    "gpu_trace",
    "iter_gpu_samples",
    "iter_metrics",
    "latest",
    "metrics",
    "node_offsets",
    "read_lease",
    "release_lease",
    "renew_lease",
    "report_pass",
    "run_gpus",
    "step_times",
]

_Row = TypeVar("_Row")

_BATCH = 1000  # rows an INSERT; both databases limit the number of parameters


def insert_campaign(
    conn: Connection,
    *,
    name: str,
    spec: str,
    spec_hash: str,
    dir: str,
    executor: str,
    provenance: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> int:
    """Records a campaign, to be run, and returns its id. A name that is taken makes the transaction a StaleWrite."""
    row = {"name": name, "spec": spec, "spec_hash": spec_hash, "dir": dir, "executor": executor, "desired": "active"}
    given = {"provenance": dict(provenance or {}), "limits": dict(limits or {})}
    return _insert(conn, schema.campaign, {**row, **given, "created_s": now_s(conn)})


def campaign_by_name(conn: Connection, name: str) -> CampaignRow | None:
    """The campaign of that name."""
    return next(iter(_fetch(conn, CampaignRow, schema.campaign, schema.campaign.c.name == name)), None)


def campaign_by_id(conn: Connection, campaign_id: int) -> CampaignRow | None:
    """The campaign of that id."""
    return next(iter(_fetch(conn, CampaignRow, schema.campaign, schema.campaign.c.id == campaign_id)), None)


def list_campaigns(conn: Connection) -> list[CampaignRow]:
    """All campaigns, oldest first."""
    return _fetch(conn, CampaignRow, schema.campaign, order=[schema.campaign.c.id])


def update_campaign(conn: Connection, campaign_id: int, **values: Any) -> bool:
    """Sets columns of a campaign; False when there is no such campaign."""
    return _update(conn, schema.campaign, campaign_id, None, values)


def insert_runs(conn: Connection, campaign_id: int, new_runs: Sequence[NewRun]) -> None:
    """Records runs. A name that the campaign already has makes the transaction a StaleWrite."""
    fixed = {"campaign_id": campaign_id, "desired": "run", "generation": 0, "retry_epoch": 0}
    fixed["updated_s"] = conn.execute(select(now_s(conn))).scalar_one()
    rows = [{**asdict(new), **fixed} for new in new_runs]
    for start in range(0, len(rows), _BATCH):
        conn.execute(insert(schema.run), rows[start : start + _BATCH])


def runs(conn: Connection, campaign_id: int) -> list[RunRow]:
    """A campaign's runs in the order of its matrix."""
    table = schema.run
    return _fetch(conn, RunRow, table, table.c.campaign_id == campaign_id, order=[table.c.ordinal, table.c.id])


def run_names(conn: Connection, campaign_id: int) -> list[str]:
    """The names alone of a campaign's runs, in the order of its matrix."""
    run = schema.run.c
    return list(
        conn.execute(select(run.name).where(run.campaign_id == campaign_id).order_by(run.ordinal, run.id)).scalars()
    )


def run_by_name(conn: Connection, campaign_id: int, name: str) -> RunRow | None:
    """The run of that name."""
    table = schema.run
    where = and_(table.c.campaign_id == campaign_id, table.c.name == name)
    return next(iter(_fetch(conn, RunRow, table, where)), None)


def run_by_id(conn: Connection, run_id: int) -> RunRow:
    """The run of that id.

    Raises:
        LookupError: there is none.
    """
    found = _fetch(conn, RunRow, schema.run, schema.run.c.id == run_id)
    if not found:
        raise LookupError(f"no run {run_id}")
    return found[0]


def update_run(
    conn: Connection, run_id: int, *, expect_states: Collection[RunState] | None = None, **values: Any
) -> bool:
    """Sets columns of a run, and the time of the change.

    Args:
        conn: A write transaction.
        run_id: The run.
        expect_states: Change it only in one of these states.
        **values: Columns of the run.

    Returns:
        False when nothing was changed because the run has left those states.
    """
    return _update(conn, schema.run, run_id, expect_states, {"updated_s": now_s(conn), **values})


def insert_attempt(conn: Connection, new: NewAttempt) -> int:
    """Records an attempt before it is submitted, makes it its run's newest, and returns its id.

    A generation that the run already has makes the transaction a StaleWrite: another process decided first.
    """
    zero = {"evidence": {}, "gpu_seconds": 0.0, "spool_offset": 0, "created_s": now_s(conn)}
    attempt_id = _insert(conn, schema.attempt, {**asdict(new), **zero})
    newest = and_(schema.run.c.id == new.run_id, schema.run.c.generation < new.generation)
    conn.execute(update(schema.run).where(newest).values(generation=new.generation))
    return attempt_id


def withdraw_attempts(conn: Connection, attempt_ids: Collection[int]) -> None:
    """Removes attempts of which surely nothing was submitted, as if they had never been decided.

    Their events go with them: an intent that comes to nothing in every pass would bury all others.
    """
    table, told = schema.attempt, schema.events
    conn.execute(delete(told).where(told.c.attempt_id.in_(list(attempt_ids))))
    rows = conn.execute(select(table.c.run_id, table.c.generation).where(table.c.id.in_(list(attempt_ids)))).all()
    conn.execute(delete(table).where(table.c.id.in_(list(attempt_ids))))
    for run_id, generation in rows:
        newest = and_(schema.run.c.id == run_id, schema.run.c.generation == generation)
        before = {"generation": generation - 1, "state": RunState.PENDING}
        conn.execute(update(schema.run).where(newest).values(before))


def attempts(conn: Connection, campaign_id: int, run_id: int | None = None) -> list[AttemptRow]:
    """The attempts of a campaign, or of one run of it, oldest first within a run."""
    table = schema.attempt
    of_campaign = select(schema.run.c.id).where(schema.run.c.campaign_id == campaign_id)
    where = table.c.run_id.in_(of_campaign) if run_id is None else table.c.run_id == run_id
    return _fetch(conn, AttemptRow, table, where, order=[table.c.run_id, table.c.generation])


def attempts_by_run(conn: Connection, campaign_id: int) -> dict[int, list[AttemptRow]]:
    """The attempts of a campaign by the id of their run, oldest first; of a run without any, an empty list."""
    rows: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in attempts(conn, campaign_id):
        rows[row.run_id].append(row)
    return rows


def update_attempt(
    conn: Connection, attempt_id: int, *, expect_states: Collection[AttemptState] | None = None, **values: Any
) -> bool:
    """Sets columns of an attempt; arguments and result as in `update_run`."""
    return _update(conn, schema.attempt, attempt_id, expect_states, values)


def evidence(conn: Connection, attempt_id: int) -> dict[str, Any]:
    """What is known of an attempt beside its columns."""
    row = schema.attempt.c
    return dict(conn.execute(select(row.evidence).where(row.id == attempt_id)).scalar_one())


def is_active(conn: Connection, attempt_id: int) -> bool:
    """Whether an attempt has not ended yet."""
    row = schema.attempt.c
    return conn.execute(select(row.state).where(row.id == attempt_id)).scalar_one() in ACTIVE_ATTEMPT


def knows_attempt(conn: Connection, attempt_id: int, token: str) -> bool:
    """Whether the store has this very attempt, and not one of another store with the same number."""
    row = schema.attempt.c
    return conn.execute(select(row.id).where(row.id == attempt_id, row.token == token)).first() is not None


def beat(conn: Connection, attempt_id: int) -> bool:
    """Says that an attempt's agent is alive, by the database's clock."""
    return _update(conn, schema.attempt, attempt_id, None, {"heartbeat_s": now_s(conn)})


def beat_batch(conn: Connection, token: str) -> None:
    """Says that whoever submits a batch is alive, by the database's clock: its attempts have no agents yet."""
    conn.execute(update(schema.attempt).where(schema.attempt.c.token == token).values(heartbeat_s=now_s(conn)))


def status(conn: Connection, campaign_id: int) -> list[RunStatus]:
    """One light row a run, for status pages: reads no metrics, and no JSON."""
    run, last, attempt = schema.run.c, schema.run_latest.c, schema.attempt.c
    homes: Mapping[str, ColumnElement[Any]] = {**schema.run_latest.c, **schema.attempt.c, **schema.run.c}
    homes = {**homes, "run_id": run.id, "step": last.step, "ts_s": last.ts_s, "code": attempt.code}
    joined = schema.run.outerjoin(schema.run_latest, last.run_id == run.id).outerjoin(
        schema.attempt, and_(attempt.run_id == run.id, attempt.generation == run.generation)
    )
    query = select(*(homes[name] for name in RunStatus._fields)).select_from(joined)
    rows = conn.execute(query.where(run.campaign_id == campaign_id).order_by(run.ordinal, run.id))
    return [RunStatus._make(row) for row in rows.all()]


def add_event(
    conn: Connection,
    campaign_id: int,
    kind: str,
    message: str,
    *,
    run_id: int | None = None,
    attempt_id: int | None = None,
    data: Mapping[str, Any] | None = None,
    ts_s: float | None = None,
) -> None:
    """Records that something happened, now by the database's clock unless `ts_s` says when."""
    values = {
        "campaign_id": campaign_id,
        "run_id": run_id,
        "attempt_id": attempt_id,
        "ts_s": now_s(conn) if ts_s is None else ts_s,
        "kind": kind,
        "message": message,
        "data": dict(data or {}),
    }
    conn.execute(insert(schema.events).values(values))


def events(conn: Connection, campaign_id: int, run_id: int | None = None, limit: int | None = None) -> list[EventRow]:
    """What happened in a campaign, or to one run of it, oldest first; with a limit, the newest so many."""
    table = schema.events
    where = table.c.campaign_id == campaign_id
    if run_id is not None:
        where = and_(where, table.c.run_id == run_id)
    return _fetch(conn, EventRow, table, where, order=[table.c.id.desc()], limit=limit)[::-1]


def events_of_kind(conn: Connection, run_id: int, kind: str, since_s: float) -> list[EventRow]:
    """What of that kind happened to a run since then, oldest first."""
    row = schema.events.c
    where = and_(row.run_id == run_id, row.kind == kind, row.ts_s >= since_s)
    return _fetch(conn, EventRow, schema.events, where, order=[row.id])


def newest_event_s(conn: Connection, campaign_id: int, kind: str) -> float | None:
    """When something of this kind last happened in a campaign, None for never."""
    told = schema.events.c
    return conn.execute(select(func.max(told.ts_s)).where(told.campaign_id == campaign_id, told.kind == kind)).scalar()


def forwards(conn: Connection, campaign_id: int) -> dict[int, dict[str, dict[str, Any]]]:
    """Where else the runs of a campaign are kept: by run id and tool, what its newest attempt said of it."""
    row, found = schema.events.c, defaultdict[int, dict[str, dict[str, Any]]](dict)
    query = select(row.run_id, row.data).where(row.campaign_id == campaign_id, row.kind == OPENED_ELSEWHERE)
    for run_id, data in conn.execute(query.order_by(row.id)):
        found[run_id][str(data.get("tool"))] = data
    return dict(found)


def record_checkpoint(conn: Connection, new: CheckpointRow) -> None:
    """Records a complete checkpoint; the same step of the same attempt is recorded once."""
    row = {**asdict(new), "created_s": new.created_s or now_s(conn)}
    conn.execute(insert_into(conn, schema.checkpoint).values(row).on_conflict_do_nothing())


def checkpoints(conn: Connection, run_id: int) -> list[CheckpointRow]:
    """A run's recorded checkpoints, newest first."""
    table = schema.checkpoint
    return _fetch(
        conn, CheckpointRow, table, table.c.run_id == run_id, order=[table.c.generation.desc(), table.c.step.desc()]
    )


def saved_steps(conn: Connection, campaign_id: int) -> dict[int, int]:
    """The step of the newest recorded checkpoint of each run's present configuration, by run id."""
    run, attempt, saved = schema.run.c, schema.attempt.c, schema.checkpoint
    present = and_(attempt.id == saved.c.attempt_id, attempt.config_hash == run.config_hash)
    query = select(run.id, func.max(saved.c.step)).join(saved, saved.c.run_id == run.id).join(schema.attempt, present)
    return {row[0]: row[1] for row in conn.execute(query.where(run.campaign_id == campaign_id).group_by(run.id))}


def checkpoint_sizes(conn: Connection, campaign_id: int) -> dict[int, int]:
    """Bytes of the largest checkpoint that each run of a campaign has recorded, by run id."""
    run, saved = schema.run.c, schema.checkpoint
    query = select(run.id, func.max(saved.c.size_bytes)).join(saved, saved.c.run_id == run.id)
    return {row[0]: row[1] for row in conn.execute(query.where(run.campaign_id == campaign_id).group_by(run.id))}


def observe_memory(conn: Connection, new: MemoryObservation) -> None:
    """Adds to the memory ledger; an attempt adds at most one that fitted and one that did not.

    What comes later of the same attempt fills in and replaces the figures that it gives.
    """
    given = {name: value for name, value in asdict(new).items() if value is not None}
    table, figures = schema.memory_observation, {n: v for n, v in given.items() if n.endswith("_gb")}
    row = insert_into(conn, table).values({**given, "created_s": new.created_s or now_s(conn)})
    once = [table.c.attempt_id, table.c.oom]
    if figures:
        conn.execute(row.on_conflict_do_update(index_elements=once, set_=figures))
    else:
        conn.execute(row.on_conflict_do_nothing(index_elements=once))


def memory_of(conn: Connection, memory_keys: Collection[str]) -> dict[str, list[MemoryObservation]]:
    """The memory ledger by memory key, of all campaigns and devices; keys of which nothing is known are left out."""
    table, attempt = schema.memory_observation, schema.attempt
    query = select(attempt.c.memory_key, *(table.c[field.name] for field in fields(MemoryObservation)))
    joined = query.join(attempt, attempt.c.id == table.c.attempt_id).order_by(table.c.created_s, table.c.attempt_id)
    found: dict[str, list[MemoryObservation]] = defaultdict(list)
    keys = sorted(memory_keys)
    for start in range(0, len(keys), _BATCH):
        for key, *row in conn.execute(joined.where(attempt.c.memory_key.in_(keys[start : start + _BATCH]))):
            found[key].append(MemoryObservation(*row))
    return dict(found)


def memory_of_run(conn: Connection, run_id: int) -> list[MemoryObservation]:
    """What the attempts of a run have added to the memory ledger, oldest first."""
    table = schema.memory_observation
    of_run = table.c.attempt_id.in_(select(schema.attempt.c.id).where(schema.attempt.c.run_id == run_id))
    return _fetch(conn, MemoryObservation, table, of_run, order=[table.c.attempt_id, table.c.oom])


def _fetch(
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
    return [kind(*row) for row in conn.execute(query.order_by(*order).limit(limit)).all()]


def _insert(conn: Connection, table: Table, values: Mapping[str, Any]) -> int:
    return int(conn.execute(insert(table).values(values).returning(table.c.id)).scalar_one())


def _update(
    conn: Connection, table: Table, row_id: int, expect_states: Collection[Any] | None, values: Mapping[str, Any]
) -> bool:
    statement = update(table).where(table.c.id == row_id).values(values)
    if expect_states is not None:
        statement = statement.where(table.c.state.in_(list(expect_states)))
    return conn.execute(statement).rowcount == 1
