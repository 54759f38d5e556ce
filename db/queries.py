"""The queries of the store: small functions on a connection.

Updates are conditional on the states that they expect, and return False if the row has moved on: look again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    and_,
    func,
    insert,
    or_,
    select,
    update,
)

from . import schema
from .records import (
    GROWS,
    OPENED_ELSEWHERE,
    AttemptRow,
    CampaignRow,
    CheckpointRow,
    EventRow,
    MemoryObservation,
    RunRow,
    RunStatus,
)
from .rows import EMPTY, fetch, insert_rows, pieces, rows_among
from .states import UNSETTLED_RUN, WANTED, AttemptState, CauseCode, RunState
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
    """Add to the memory ledger; an attempt adds at most one size that fitted and one size that did not.

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


def of_run(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return these columns of a run; a reason without a cause clears the run's former cause."""
    return {"cause": None, **values} if "reason" in values else {**values}


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
    """Return the events of a campaign, oldest first: of a run, of a kind, later than an event, only the newest."""
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
