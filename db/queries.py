"""The queries of the store: small functions on a connection.

Updates are conditional on the states that they expect, and return False if the row has moved on: look again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from . import schema
from .errors import StaleLease
from .records import (
    GROWS,
    OPENED_ELSEWHERE,
    AttemptRow,
    CampaignRow,
    CheckpointRow,
    EventRow,
    Lease,
    MemoryObservation,
    NewAttempt,
    NewRun,
    RunRow,
    RunStatus,
)
from .rows import EMPTY, StoredDocument, fetch, fetch_among, fields_of, insert_rows, pieces, rows_among
from .states import UNSETTLED_RUN, WANTED, AttemptState, Cause, CauseCode, RunState
from .store import database_now, insert_into, now_s


def insert_campaign(conn: Connection, **values: Any) -> int:
    """Record an active campaign and return its id. A name that is taken makes the transaction a StaleWrite."""
    row = {"desired": "active", "provenance": {}, "limits": {}, **values, "created_s": now_s(conn)}
    return int(conn.execute(insert(schema.campaign).values(row).returning(schema.campaign.c.id)).scalar_one())


def campaign_by_name(conn: Connection, name: str) -> CampaignRow | None:
    """Return the campaign of that name."""
    return next(iter(fetch(conn, CampaignRow, schema.campaign, schema.campaign.c.name == name)), None)


def campaign_by_id(conn: Connection, campaign_id: int) -> CampaignRow | None:
    """Return the campaign of that id."""
    return next(iter(fetch(conn, CampaignRow, schema.campaign, schema.campaign.c.id == campaign_id)), None)


def lock_campaign(conn: Connection, campaign_id: int) -> CampaignRow | None:
    """Return a campaign that nobody else changes before this transaction ends."""
    conn.execute(select(schema.campaign.c.id).where(schema.campaign.c.id == campaign_id).with_for_update())
    return campaign_by_id(conn, campaign_id)


def list_campaigns(conn: Connection) -> list[CampaignRow]:
    """Return all campaigns, oldest first."""
    return fetch(conn, CampaignRow, schema.campaign, order=[schema.campaign.c.id])


def unsettled_campaigns(conn: Connection) -> set[int]:
    """Return the ids of the campaigns that have an unsettled run, or trials or follow-ups to come."""
    run, campaign = schema.run.c, schema.campaign.c
    query = select(run.campaign_id).where(run.state.in_(list(UNSETTLED_RUN))).distinct()
    to_come = or_(*(campaign.provenance[name, "open"].as_boolean() for name in GROWS))
    growing = select(campaign.id).where(campaign.desired == "active", to_come)
    return {*conn.execute(query).scalars(), *conn.execute(growing).scalars()}


def lacking_variables(conn: Connection) -> set[int]:
    """Return the ids of the campaigns with a wanted run that is held for missing variables."""
    run = schema.run.c
    held = select(run.campaign_id).where(run.state == RunState.HELD, run.desired.in_(list(WANTED)))
    missing = run.cause["code"].as_string() == CauseCode.MISSING_VARIABLES
    return set(conn.execute(held.where(missing).distinct()).scalars())


def update_campaign(conn: Connection, campaign_id: int, **values: Any) -> bool:
    """Set columns of a campaign; return False if the campaign does not exist."""
    return _update(conn, schema.campaign, campaign_id, None, values)


def runs(conn: Connection, campaign_id: int) -> list[RunRow]:
    """Return a campaign's runs in the order of its matrix."""
    table = schema.run
    return fetch(conn, RunRow, table, table.c.campaign_id == campaign_id, order=[table.c.ordinal, table.c.id])


def run_names(conn: Connection, campaign_id: int) -> list[str]:
    """Return the names of a campaign's runs, in the order of its matrix."""
    run = schema.run.c
    return list(
        conn.execute(select(run.name).where(run.campaign_id == campaign_id).order_by(run.ordinal, run.id)).scalars()
    )


def runs_of_job(conn: Connection, job: str) -> list[tuple[str, str, int]]:
    """Return campaign, name and attempt of each run in a job or an array of jobs, by id or token; newest first."""
    attempt, tasks = schema.attempt.c, f"{job}_"
    wanted = or_(attempt.job_id == job, attempt.job_id.startswith(tasks, autoescape=True), attempt.token == job)
    joined = schema.attempt.join(schema.run, schema.run.c.id == attempt.run_id).join(schema.campaign)
    query = select(schema.campaign.c.name, schema.run.c.name, attempt.generation).select_from(joined).where(wanted)
    return [(campaign, run, number) for campaign, run, number in conn.execute(query.order_by(attempt.id.desc()))]


def run_by_name(conn: Connection, campaign_id: int, name: str) -> RunRow | None:
    """Return the run of that name."""
    table = schema.run
    condition = and_(table.c.campaign_id == campaign_id, table.c.name == name)
    return next(iter(fetch(conn, RunRow, table, condition)), None)


def run_by_id(conn: Connection, run_id: int) -> RunRow:
    """Return the run of that id; raises LookupError if there is none."""
    rows = fetch(conn, RunRow, schema.run, schema.run.c.id == run_id)
    if not rows:
        raise LookupError(f"no run {run_id}")
    return rows[0]


def update_run(
    conn: Connection, run_id: int, *, expect_states: Collection[RunState] | None = None, **values: Any
) -> bool:
    """Set columns of a run; return False if nothing was changed because it has left the `expect_states`."""
    return _update(conn, schema.run, run_id, expect_states, {"updated_s": now_s(conn), **of_run(values)})


def attempts(conn: Connection, campaign_id: int, run_id: int | None = None) -> list[AttemptRow]:
    """Return the attempts of a campaign, or of a run of it, oldest first within a run."""
    table = schema.attempt
    of_campaign = select(schema.run.c.id).where(schema.run.c.campaign_id == campaign_id)
    condition = table.c.run_id.in_(of_campaign) if run_id is None else table.c.run_id == run_id
    return fetch(conn, AttemptRow, table, condition, order=[table.c.run_id, table.c.generation])


def attempts_by_run(conn: Connection, campaign_id: int) -> dict[int, list[AttemptRow]]:
    """Return the attempts of a campaign by the id of their run, oldest first; an empty list for a run without any."""
    rows: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in attempts(conn, campaign_id):
        rows[row.run_id].append(row)
    return rows


def update_attempt(
    conn: Connection, attempt_id: int, *, expect_states: Collection[AttemptState] | None = None, **values: Any
) -> bool:
    """Set columns of an attempt; arguments and result as in `update_run`."""
    return _update(conn, schema.attempt, attempt_id, expect_states, values)


def beat(conn: Connection, attempt_id: int, token: str | None = None) -> bool:
    """Record that an attempt's agent is alive; return False if the attempt, with this token if any, does not exist."""
    row = schema.attempt.c
    this = row.id == attempt_id if token is None else and_(row.id == attempt_id, row.token == token)
    return conn.execute(update(schema.attempt).where(this).values(heartbeat_s=now_s(conn))).rowcount == 1


def beat_batch(conn: Connection, token: str) -> None:
    """Record that the submitter of a batch is alive, by the database's clock: its attempts have no agents yet."""
    conn.execute(update(schema.attempt).where(schema.attempt.c.token == token).values(heartbeat_s=now_s(conn)))


def known_tokens(conn: Connection, tokens: Collection[str]) -> set[str]:
    """Return the submissions that an attempt belongs to."""
    row = schema.attempt.c
    return {found.token for found in rows_among(conn, select(row.token).distinct(), row.token, list(tokens))}


def status(conn: Connection, campaign_id: int) -> list[RunStatus]:
    """Return one light row a run, for status pages: reads no metrics, and no JSON."""
    run, last, attempt = schema.run.c, schema.run_latest.c, schema.attempt.c
    homes: Mapping[str, ColumnElement[Any]] = {**schema.run_latest.c, **schema.attempt.c, **schema.run.c}
    homes = {**homes, "run_id": run.id, "step": last.step, "ts_s": last.ts_s, "code": attempt.code}
    joined = schema.run.outerjoin(schema.run_latest, last.run_id == run.id).outerjoin(schema.attempt, schema.NEWEST)
    query = select(*(homes[name] for name in RunStatus._fields)).select_from(joined)
    rows = conn.execute(query.where(run.campaign_id == campaign_id).order_by(run.ordinal, run.id))
    return [RunStatus._make(row) for row in rows.all()]


def status_mark(conn: Connection, campaign_id: int) -> tuple[Any, ...]:
    """Return sums that change whenever the rows of `status` do, for a fraction of their time."""
    run, last, attempt = schema.run.c, schema.run_latest.c, schema.attempt.c
    joined = schema.run.outerjoin(schema.run_latest, last.run_id == run.id).outerjoin(schema.attempt, schema.NEWEST)
    sums = (run.id, run.updated_s, last.step, last.ts_s, attempt.id, attempt.started_s, attempt.phase_since_s)
    counts = (attempt.job_id, attempt.failure_class, attempt.micro_batch)
    texts = (attempt.phase, attempt.node_list)
    columns = [*map(func.sum, sums), *map(func.count, counts), *(func.sum(func.length(text)) for text in texts)]
    return tuple(conn.execute(select(*columns).select_from(joined).where(run.campaign_id == campaign_id)).one())


def params_of_first_repeats(conn: Connection, campaign_id: int) -> dict[str, dict[str, Any]]:
    """Return the axis values of each run that is the first of its condition, by its name."""
    run = schema.run.c
    query = select(run.name, run.params).where(run.campaign_id == campaign_id, run.repeat == 0).order_by(run.ordinal)
    return dict(conn.execute(query).all())


def record_checkpoint(conn: Connection, new: CheckpointRow) -> None:
    """Record a complete checkpoint; the same step of the same attempt is recorded once."""
    row = {**asdict(new), "created_s": new.created_s or now_s(conn)}
    conn.execute(insert_into(conn, schema.checkpoint).values(row).on_conflict_do_nothing())


def checkpoints(conn: Connection, run_id: int) -> list[CheckpointRow]:
    """Return a run's recorded checkpoints, newest first."""
    table = schema.checkpoint
    return fetch(
        conn, CheckpointRow, table, table.c.run_id == run_id, order=[table.c.generation.desc(), table.c.step.desc()]
    )


def saved_steps(conn: Connection, campaign_id: int, run_ids: Sequence[int] | None = None) -> dict[int, int]:
    """Return the newest saved step of each run's present configuration, by id: of all runs, or of these."""
    run, attempt, saved = schema.run.c, schema.attempt.c, schema.checkpoint
    present = and_(attempt.id == saved.c.attempt_id, attempt.config_hash == run.config_hash)
    query = select(run.id, func.max(saved.c.step)).join(saved, saved.c.run_id == run.id).join(schema.attempt, present)
    conditions = [run.campaign_id == campaign_id] if run_ids is None else [run.id.in_(some) for some in pieces(run_ids)]
    return {row[0]: row[1] for some in conditions for row in conn.execute(query.where(some).group_by(run.id))}


def checkpoint_sizes(conn: Connection, run_ids: Sequence[int]) -> dict[int, int]:
    """Return the bytes of the largest checkpoint that each of these runs has recorded, by run id."""
    saved = schema.checkpoint.c
    query = select(saved.run_id, func.max(saved.size_bytes)).group_by(saved.run_id)
    return {row[0]: row[1] for row in rows_among(conn, query, saved.run_id, run_ids)}


def observe_memory(conn: Connection, new: MemoryObservation) -> None:
    """Add to the memory ledger; an attempt adds at most one that fitted and one that did not.

    A later observation of the same attempt and size fills in and replaces figures.
    """
    values = {name: value for name, value in asdict(new).items() if value is not None}
    table, figures = schema.memory_observation, {n: v for n, v in values.items() if n.endswith("_gb")}
    row = insert_into(conn, table).values({**values, "created_s": new.created_s or now_s(conn)})
    once = [table.c.attempt_id, table.c.oom]
    if figures:
        same = table.c.micro_batch == new.micro_batch  # else a peak would come to stand beside another size
        conn.execute(row.on_conflict_do_update(index_elements=once, set_=figures, where=same))
    else:
        conn.execute(row.on_conflict_do_nothing(index_elements=once))


def memory_of(conn: Connection, memory_keys: Collection[str]) -> dict[str, list[MemoryObservation]]:
    """Return the memory ledger by memory key, of all campaigns and devices; unknown keys are left out."""
    table, attempt = schema.memory_observation, schema.attempt
    query = select(attempt.c.memory_key, *(table.c[field.name] for field in fields(MemoryObservation)))
    joined = query.join(attempt, attempt.c.id == table.c.attempt_id).order_by(table.c.created_s, table.c.attempt_id)
    by_key: dict[str, list[MemoryObservation]] = defaultdict(list)
    for key, *row in rows_among(conn, joined, attempt.c.memory_key, sorted(memory_keys)):
        by_key[key].append(MemoryObservation(*row))
    return dict(by_key)


def memory_of_run(conn: Connection, run_id: int) -> list[MemoryObservation]:
    """Return the observations of a run's attempts, oldest first."""
    table = schema.memory_observation
    of_run = table.c.attempt_id.in_(select(schema.attempt.c.id).where(schema.attempt.c.run_id == run_id))
    return fetch(conn, MemoryObservation, table, of_run, order=[table.c.attempt_id, table.c.oom])


def _update(
    conn: Connection, table: Table, row_id: int, expect_states: Collection[Any] | None, values: Mapping[str, Any]
) -> bool:
    statement = update(table).where(table.c.id == row_id).values(values)
    if expect_states is not None:
        statement = statement.where(table.c.state.in_(list(expect_states)))
    return conn.execute(statement).rowcount == 1


@dataclass
class NewEvent:
    """An event of a campaign, a run or an attempt; `ts_s` None for now."""

    kind: str
    message: str
    run_id: int | None = None
    attempt_id: int | None = None
    data: Mapping[str, Any] | None = None
    ts_s: float | None = None


def add_event(conn: Connection, campaign_id: int, kind: str, message: str, **more: Any) -> None:
    """Record an event with more fields of `NewEvent`, at the database's present time unless `ts_s` is given."""
    conn.execute(insert(schema.events).values(_row(campaign_id, NewEvent(kind, message, **more), now_s(conn))))


def add_events(conn: Connection, campaign_id: int, new: Sequence[NewEvent]) -> None:
    """Record many events at once."""
    if not new:
        return
    now = database_now(conn)
    insert_rows(conn, schema.events, [_row(campaign_id, event, now) for event in new])


def _row(campaign_id: int, new: NewEvent, now: Any) -> dict[str, Any]:
    ts_s = now if new.ts_s is None else new.ts_s
    return {**vars(new), "campaign_id": campaign_id, "ts_s": ts_s, "data": EMPTY if new.data is None else new.data}


def events(
    conn: Connection,
    campaign_id: int,
    run_id: int | None = None,
    limit: int | None = None,
    after: int = 0,
    kind: str | None = None,
) -> list[EventRow]:
    """Return the events of a campaign, oldest first: of a run, of a kind, later than one, only the newest."""
    row = schema.events.c
    chosen = [column == value for column, value in ((row.run_id, run_id), (row.kind, kind)) if value is not None]
    condition = and_(row.campaign_id == campaign_id, row.id > after, *chosen)
    return fetch(conn, EventRow, schema.events, condition, order=[row.id.desc()], limit=limit)[::-1]


def newest_event_s(conn: Connection, campaign_id: int, kind: str) -> float | None:
    """Return the time of the newest event of a kind in a campaign, None for never."""
    row = schema.events.c
    return conn.execute(select(func.max(row.ts_s)).where(row.campaign_id == campaign_id, row.kind == kind)).scalar()


def forwards(conn: Connection, campaign_id: int) -> dict[int, dict[str, dict[str, Any]]]:
    """Return, by run id and tool, the place in another tool that the newest attempt reported."""
    row, by_run = schema.events.c, defaultdict[int, dict[str, dict[str, Any]]](dict)
    query = select(row.run_id, row.data).where(row.campaign_id == campaign_id, row.kind == OPENED_ELSEWHERE)
    for run_id, data in conn.execute(query.order_by(row.id)):
        by_run[run_id][str(data.get("tool"))] = data
    return dict(by_run)


# -- many rows at once: ten thousand runs are a handful of statements -------------------------------------------------


def insert_runs(conn: Connection, campaign_id: int, new_runs: Sequence[NewRun]) -> None:
    """Record runs. A name that the campaign already has makes the transaction a StaleWrite."""
    fixed = {"campaign_id": campaign_id, "desired": "run", "generation": 0, "retry_epoch": 0}
    fixed["updated_s"] = database_now(conn)
    rows = [{**fields_of(new), **fixed} for new in new_runs]
    if rows:
        insert_rows(conn, schema.run, rows)


def of_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return these columns of a run; a reason without a cause clears the run's former one."""
    return {"cause": None, **values} if "reason" in values else {**values}


def explain_waiting(conn: Connection, run_ids: Sequence[int], reason: str, cause: Cause | None) -> None:
    """Record why runs wait in the queue, of those that still do."""
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
    """Record the jobs of attempts, by id, that were only intended until now; return the ids of those."""
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
    """Return attempts by id, in the order of the ids, without those that are gone."""
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


# -- the lease: one reconciler at a time, by the database's clock ------------------------------------------------------

# The epoch grows whenever the holder changes, and every write checks it in its own transaction: a leader that was
# stopped past its lease writes nothing.


def acquire_lease(conn: Connection, name: str, holder: str, ttl_s: float) -> int | None:
    """Take a lease, or renew one's own, which keeps its epoch; return the epoch, None while another holder has it."""
    now = now_s(conn)
    new = insert_into(conn, schema.lease).values(name=name, holder=holder, epoch=1, expires_s=now + ttl_s)
    mine = schema.lease.c.holder == new.excluded.holder
    upsert = new.on_conflict_do_update(
        index_elements=[schema.lease.c.name],
        set_={
            "holder": new.excluded.holder,
            "epoch": case((mine, schema.lease.c.epoch), else_=schema.lease.c.epoch + 1),
            "expires_s": new.excluded.expires_s,
        },
        # none lasts as long as twice: it was taken before the clock was set back
        where=or_(mine, schema.lease.c.expires_s <= now, schema.lease.c.expires_s > now + 2 * ttl_s),
    )
    return conn.execute(upsert.returning(schema.lease.c.epoch)).scalar_one_or_none()


def renew_lease(conn: Connection, name: str, epoch: int, ttl_s: float) -> None:
    """Renew a lease, even one that ran out, and make this transaction depend on it; raises StaleLease if it is lost."""
    mine = update(schema.lease).where(schema.lease.c.name == name, schema.lease.c.epoch == epoch)
    if not conn.execute(mine.values(expires_s=now_s(conn) + ttl_s)).rowcount:
        current = read_lease(conn, name)
        raise StaleLease(f"the lease {name} has moved on from epoch {epoch} to {current and current.epoch}")


def report_pass(conn: Connection, name: str, looked_s: float | None, *, heard: bool, trouble: str) -> None:
    """Record the result of a pass: see `Lease`. `looked_s`: when it asked for jobs, None if it did not."""
    times = {} if looked_s is None else {"asked_s": looked_s, **({"heard_s": looked_s} if heard else {})}
    conn.execute(update(schema.lease).where(schema.lease.c.name == name).values(trouble=trouble, **times))


def read_lease(conn: Connection, name: str) -> Lease | None:
    """Return the lease as it stands, expired or not."""
    row = conn.execute(select(schema.lease).where(schema.lease.c.name == name)).first()
    return None if row is None else Lease(*row)


def release_lease(conn: Connection, name: str, epoch: int, after_s: float = 0.0) -> bool:
    """Let a lease run out, at once or in so many seconds; return False if it belongs to another holder by now."""
    mine = update(schema.lease).where(schema.lease.c.name == name, schema.lease.c.epoch == epoch)
    return conn.execute(mine.values(expires_s=now_s(conn) + after_s)).rowcount == 1
