"""The events of a campaign."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, insert, select

from . import schema
from .records import OPENED_ELSEWHERE, EventRow
from .rows import fetch
from .store import database_now, now_s
from .stored_document import EMPTY


@dataclass(frozen=True)
class NewEvent:
    """An event of a campaign, a run or an attempt; `ts_s` None for now."""

    kind: str
    message: str
    run_id: int | None = None
    attempt_id: int | None = None
    data: Mapping[str, Any] | None = None
    ts_s: float | None = None


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
    """Record an event, at the database's present time unless `ts_s` is given."""
    new = NewEvent(kind, message, run_id, attempt_id, data, ts_s)
    conn.execute(insert(schema.events).values(_row(campaign_id, new, now_s(conn))))


def add_events(conn: Connection, campaign_id: int, new: Sequence[NewEvent]) -> None:
    """Record many events at once."""
    if not new:
        return
    now = database_now(conn)
    conn.execute(insert(schema.events), [_row(campaign_id, one, now) for one in new])


def _row(campaign_id: int, new: NewEvent, now: Any) -> dict[str, Any]:
    ts_s = now if new.ts_s is None else new.ts_s
    return {**vars(new), "campaign_id": campaign_id, "ts_s": ts_s, "data": EMPTY if new.data is None else new.data}


def events(conn: Connection, campaign_id: int, run_id: int | None = None, limit: int | None = None) -> list[EventRow]:
    """Return the events of a campaign, or of a run, oldest first; with a limit, only the newest."""
    table = schema.events
    where = table.c.campaign_id == campaign_id
    if run_id is not None:
        where = and_(where, table.c.run_id == run_id)
    return fetch(conn, EventRow, table, where, order=[table.c.id.desc()], limit=limit)[::-1]


def events_of_kind(conn: Connection, run_id: int, kind: str) -> list[EventRow]:
    """Return the events of a kind of a run, oldest first."""
    row = schema.events.c
    where = and_(row.run_id == run_id, row.kind == kind)
    return fetch(conn, EventRow, schema.events, where, order=[row.id])


def newest_event_s(conn: Connection, campaign_id: int, kind: str) -> float | None:
    """Return the time of the newest event of a kind in a campaign, None for never."""
    told = schema.events.c
    return conn.execute(select(func.max(told.ts_s)).where(told.campaign_id == campaign_id, told.kind == kind)).scalar()


def forwards(conn: Connection, campaign_id: int) -> dict[int, dict[str, dict[str, Any]]]:
    """Return, by run id and tool, the place in another tool that the newest attempt reported."""
    row, found = schema.events.c, defaultdict[int, dict[str, dict[str, Any]]](dict)
    query = select(row.run_id, row.data).where(row.campaign_id == campaign_id, row.kind == OPENED_ELSEWHERE)
    for run_id, data in conn.execute(query.order_by(row.id)):
        found[run_id][str(data.get("tool"))] = data
    return dict(found)
