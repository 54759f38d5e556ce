"""The right to write for a campaign, and what every effect writes with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ...db import queries
from ...db.records import ACTIVE_ATTEMPT, AttemptRow, AttemptState
from ...db.store import Store
from ..errors import Unreachable
from ..failures.policy import FailureClass


@dataclass(frozen=True)
class FencedWriter:
    """The right to act for a campaign: a lease and its epoch, which every write checks."""

    store: Store
    lease: str
    epoch: int
    campaign_id: int

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A write transaction that fails with StaleLease if somebody else has taken over."""
        with self.store.write() as conn:
            queries.check_lease(conn, self.lease, self.epoch)
            yield conn

    def event(self, conn: Connection, kind: str, message: str, row: AttemptRow, data: Any = None) -> None:
        """Adds an event about an attempt."""
        queries.add_event(
            conn, self.campaign_id, kind, message, run_id=row.run_id, attempt_id=row.id, data=data and dict(data)
        )


def never_ran(conn: Connection, row: AttemptRow, writer: FencedWriter, kind: FailureClass, reason: str) -> None:
    """Ends an attempt that no job has run and none will."""
    values = {"failure_class": kind, "evidence": {"reason": reason, "hint": ""}, "ended_s": writer.store.now(conn)}
    if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, state=AttemptState.FAILED, **values):
        writer.event(conn, "ended", f"attempt {row.generation}: {kind}: {reason}", row)


def no_folder(exc: OSError) -> Unreachable:
    """The shared folder is in trouble, not the attempt."""
    return Unreachable(f"the shared folder does not take files: {exc}", "the next pass tries again")
