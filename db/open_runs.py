"""Selects the runs that a pass must inspect: of hundreds of thousands, few can change at a time.

Of runs that wait in the queue it reads a few columns; fresh runs come in pieces, and done runs not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, Text, and_, case, cast, func, or_, select

from . import schema
from .records import COMPLETED, COMPLETED_EARLY, AttemptRow, RunRow
from .rows import fetch_among
from .states import SETTLED_RUN, TERMINAL_ATTEMPT, WANTED, AttemptState, RunState, Stage

SUCCESSES: Final = (COMPLETED, COMPLETED_EARLY)  # the failure classes of attempts that complete their run

_RUN, _ATTEMPT = schema.run.c, schema.attempt.c
_NEWEST: Final = schema.run.outerjoin(schema.attempt, schema.NEWEST)
_FRESH: Final = and_(_RUN.state == RunState.PENDING, _RUN.generation == 0)


class WaitingAttempt(NamedTuple):
    """The first attempt of a run that waits in the queue, with the columns that may change without a look at it."""

    run_id: int
    name: str
    reason: str
    attempt_id: int
    token: str
    task: int
    job_id: str
    created_s: float
    memory_key: str | None
    position: int | None

    @property
    def job_key(self) -> tuple[str, int]:
        """As of `AttemptRow`."""
        return self.token, self.task


def _given(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition, false if any of its values is missing."""
    return case((condition, 1), else_=0) == 1


def _done(cancelled: bool) -> ColumnElement[bool]:
    over = _ATTEMPT.state.in_(list(TERMINAL_ATTEMPT))
    present = and_(_ATTEMPT.config_hash == _RUN.config_hash, _ATTEMPT.retry_epoch == _RUN.retry_epoch)
    succeeded = and_(_ATTEMPT.failure_class.in_(SUCCESSES), present)
    unwanted = [] if cancelled else [_RUN.desired.not_in(WANTED)]
    unrun = or_(_ATTEMPT.id.is_(None), and_(over, _ATTEMPT.failure_class.not_in(SUCCESSES)))
    unexplained = and_(_RUN.reason == "", _RUN.not_before_s.is_(None))
    ends = or_(
        and_(_RUN.state.in_((RunState.COMPLETED, RunState.PRUNED)), over, succeeded),
        and_(_RUN.state == RunState.CANCELLED, *unwanted, unexplained, unrun),
    )
    return _given(ends)


def _waits(cancelled: bool) -> ColumnElement[bool]:
    if cancelled:
        return _given(_RUN.id.is_(None))
    as_submitted = and_(
        _ATTEMPT.state == AttemptState.QUEUED,
        _ATTEMPT.generation == 1,
        _ATTEMPT.retry_epoch == _RUN.retry_epoch,
        _ATTEMPT.job_id.is_not(None),
        _ATTEMPT.array_index.is_not(None),
        _ATTEMPT.phase == "",
        _ATTEMPT.node_list == "",
        cast(_ATTEMPT.evidence, Text) == "{}",
    )
    wanted = and_(_RUN.desired.in_(WANTED), _RUN.not_before_s.is_(None))
    return _given(and_(_RUN.state == RunState.QUEUED, wanted, as_submitted))


def open_runs(conn: Connection, campaign_id: int, *, cancelled: bool) -> tuple[list[int], list[WaitingAttempt]]:
    """Return the runs that are begun and not done: ids to read, and runs that only wait, in the matrix's order."""
    task = func.coalesce(_ATTEMPT.task, _ATTEMPT.array_index)
    columns = (_ATTEMPT.id, _ATTEMPT.token, task, _ATTEMPT.job_id, _ATTEMPT.created_s)
    waits = case((_waits(cancelled), 1), else_=0)
    query = select(
        waits, _RUN.id, _RUN.name, _RUN.reason, *columns, _ATTEMPT.memory_key, _ATTEMPT.position
    ).select_from(_NEWEST)
    query = query.where(_RUN.campaign_id == campaign_id, ~_FRESH, ~_done(cancelled))
    ids, waiting = [], []
    same: dict[Any, Any] = {}  # thousands have one token and one reason
    for only_waits, run_id, name, reason, attempt_id, token, index, *rest in conn.execute(
        query.order_by(_RUN.ordinal, _RUN.id)
    ):
        if only_waits:
            job_id, created_s, key, position = rest
            cause, array, since_s, memory = (same.setdefault(value, value) for value in (reason, token, created_s, key))
            waiting.append(
                WaitingAttempt(run_id, name, cause, attempt_id, array, index, job_id, since_s, memory, position)
            )
        else:
            ids.append(run_id)
    return ids, waiting


def fresh_runs(conn: Connection, campaign_id: int, most: int, skipped: int = 0) -> tuple[list[int], bool]:
    """Return ids of runs without an attempt, in the order in which they start, and whether there are more.

    Runs that are not wanted any more come first: they need no room to be over.
    """
    query = select(_RUN.id).where(_RUN.campaign_id == campaign_id, _FRESH)
    ordered = query.order_by(_RUN.desired.in_(WANTED), _RUN.stage == Stage.FULL, _RUN.repeat, _RUN.ordinal, _RUN.id)
    ids = list(conn.execute(ordered.offset(skipped).limit(most + 1)).scalars())
    return ids[:most], skipped > 0 or len(ids) > most


def runs_of(conn: Connection, run_ids: Sequence[int]) -> list[RunRow]:
    """Return runs by id, in the order of the matrix."""
    rows = fetch_among(conn, RunRow, schema.run, _RUN.id, run_ids)
    return sorted(rows, key=lambda row: (row.ordinal, row.id))


def attempts_of_runs(conn: Connection, run_ids: Sequence[int]) -> Iterator[AttemptRow]:
    """Yield the attempts of runs by id, oldest first within a run."""
    order = _ATTEMPT.run_id, _ATTEMPT.generation
    return fetch_among(conn, AttemptRow, schema.attempt, _ATTEMPT.run_id, run_ids, order)


def failed_attempts(
    conn: Connection, campaign_id: int, kinds: Collection[str], without: Collection[int]
) -> list[AttemptRow]:
    """Return the attempts of a campaign that ended in any of these ways, except attempts of these runs."""
    joined = select(_ATTEMPT.id, _RUN.id).join(schema.run, _RUN.id == _ATTEMPT.run_id)
    # a completed run has had others only before its newest
    several = or_(_RUN.generation > 1, _RUN.state != RunState.COMPLETED)
    query = joined.where(_RUN.campaign_id == campaign_id, several, _ATTEMPT.failure_class.in_(list(kinds)))
    ids = [attempt_id for attempt_id, run_id in conn.execute(query) if run_id not in without]
    return list(fetch_among(conn, AttemptRow, schema.attempt, _ATTEMPT.id, ids))


def trained_hosts(conn: Connection, campaign_id: int) -> frozenset[str]:
    """Return the nodes on which an ended attempt of a campaign has made a step."""
    progressed = _ATTEMPT.last_step > func.coalesce(_ATTEMPT.start_step, 0)
    query = select(_ATTEMPT.evidence).join(schema.run, _RUN.id == _ATTEMPT.run_id)
    ended = query.where(_RUN.campaign_id == campaign_id, _ATTEMPT.state.in_(list(TERMINAL_ATTEMPT)), progressed)
    evidences = conn.execute(ended).scalars()
    return frozenset(str(node["host"]) for evidence in evidences for node in evidence.get("nodes") or ())


def trained_interpreters(conn: Connection, campaign_id: int) -> frozenset[str]:
    """Return the `python` of each run of a campaign with an attempt that has made a step; "" for the default."""
    progressed = _ATTEMPT.last_step > func.coalesce(_ATTEMPT.start_step, 0)
    query = select(_RUN.config["python"].as_string()).distinct().join(schema.attempt, _ATTEMPT.run_id == _RUN.id)
    return frozenset(
        name or "" for name in conn.execute(query.where(_RUN.campaign_id == campaign_id, progressed)).scalars()
    )


def unread_spools(conn: Connection, campaign_id: int, late_s: float, *, ended: bool) -> list[tuple[int, str]]:
    """Return ids of the attempts with files that may not be read yet, with their runs' names.

    Of each run the two newest, since files of the one before may have arrived late, and those that ended since
    `late_s`, by the store's clock; with `ended`, also of runs that have been settled for longer.
    """
    newest = _ATTEMPT.generation >= _RUN.generation - 1
    seen_s = _ATTEMPT.evidence["seen_s"].as_float()
    recent = func.coalesce(func.nullif(seen_s, 0.0), _ATTEMPT.ended_s, 0.0) > late_s
    query = select(_ATTEMPT.id, _RUN.name).join(schema.run, _RUN.id == _ATTEMPT.run_id)
    query = query.where(_RUN.campaign_id == campaign_id, or_(newest, recent))
    if not ended:
        query = query.where(or_(_RUN.state.not_in(list(SETTLED_RUN)), _RUN.updated_s > late_s))
    ordered: Select[Any] = query.order_by(_ATTEMPT.run_id, _ATTEMPT.generation.desc())
    return [(row[0], row[1]) for row in conn.execute(ordered)]
