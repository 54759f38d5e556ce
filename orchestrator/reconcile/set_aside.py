"""A run or a spool that cannot be read is reported, tried again, and then given up for itself alone.

A pass goes on without it. Events count the reports, at most one in the time in which a shared folder may lag: so a file
that is late is waited for, also by reconcilers that make one pass each.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from dscampaign.db import queries
from dscampaign.db.driver_errors import first_line
from dscampaign.db.errors import StoreIncomplete
from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import ACTIVE_ATTEMPT, AttemptState, Cause, CauseCode, RunState
from dscampaign.db.store import refusal
from dscampaign.files.regular_files import concerns_one_file
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.formatting import shorten

from .actions import Finish, SetAside
from .lease import FencedWriter

PASSES: Final = 3
"""Tries before it is given up."""

UNJUDGED: Final = "unjudged"
"""Kind of event about a run that cannot be judged."""

UNREAD: Final = "spool.unreadable"

EVIDENCE: Final = "unreadable"
"""Rule of a verdict without readable evidence."""

HINT: Final = "the other runs continue; a retry starts this one again"

_LONGEST: Final = 500

_LATELY_S: Final = 3600.0
"""Older events are of another trouble."""


def in_words(error: BaseException) -> str:
    """Return an error in one line; an unforeseen error with its place in the code."""
    message = shorten(first_line(error), _LONGEST)
    if isinstance(error, OSError | UserError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {message}{where}"


def unreadable(why: str) -> Verdict:
    """Return the verdict on an attempt without readable evidence: to try again would not show more."""
    return Verdict(FailureClass.CRASH, why, HINT, rule=EVIDENCE)


def may_pass(error: BaseException) -> bool:
    """Return whether the file system fails, or a store is being restored, rather than one file is damaged."""
    return isinstance(error, StoreIncomplete) or (isinstance(error, OSError) and not concerns_one_file(error))


def is_given_up(run: RunRow) -> bool:
    """Return whether a run is held for being unreadable: nothing follows until its user retries it."""
    return run.state is RunState.HELD and run.has_cause(CauseCode.UNREADABLE)


def set_aside(
    action: SetAside, writer: FencedWriter, grace_s: float, finish: Callable[[Connection, Finish], None]
) -> Unreachable | None:
    """Report that a run cannot be judged; the last time, end it.

    Args:
        action: the run, and how it would be ended.
        grace_s: for so long a trouble counts once.
        finish: records the end of an attempt.

    Returns:
        The trouble, None if nothing is left to do for the run.
    """
    with writer.write() as conn:
        run = queries.run_by_id(conn, action.run_id)
        message = f"run {run.name} cannot be judged: {action.why}"
        trouble = Unreachable(message, "the other runs continue; this run is tried again", about=run.name)
        if action.passing:
            return trouble
        epoch = {"retry_epoch": run.retry_epoch}
        lasts = _tell(conn, writer, UNJUDGED, f"not judged: {action.why}", run.id, None, epoch, grace_s)
        if not lasts or action.state is None:
            return trouble
        if action.finish is not None and refusal(conn, partial(finish, conn, action.finish)):
            _end(conn, action.finish.attempt, action, action.finish.seen_s)
        held = action.state is RunState.HELD
        reason, cause = (f"{action.why} · {HINT}", Cause(CauseCode.UNREADABLE)) if held else ("", None)
        queries.update_run(conn, run.id, state=action.state, reason=reason, cause=cause, not_before_s=None)
    return None


def _end(conn: Connection, row: AttemptRow, action: SetAside, now_s: float) -> None:
    """Nothing else of it can be recorded."""
    evidence = {"reason": action.why, "hint": HINT, "rule": EVIDENCE, "seen_s": now_s}
    values = {"state": AttemptState.FAILED, "failure_class": FailureClass.CRASH, "evidence": evidence, "ended_s": now_s}
    queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, **values)


def give_up_spool(row: AttemptRow, error: Exception, writer: FencedWriter, grace_s: float) -> Unreachable | None:
    """Report that a spool cannot be read; return the trouble, unless it lasts: then the spool is passed over.

    An error of the file system is waited for.
    """
    message = f"cannot read metrics: {in_words(error)}"
    trouble = Unreachable(message, "nothing is lost; the next pass tries again", about="metrics")
    if may_pass(error):
        return trouble
    with writer.write() as conn:
        lasts = _tell(conn, writer, UNREAD, trouble.message, row.run_id, row.id, {}, grace_s)
    return None if lasts else trouble


def _tell(
    conn: Connection,
    writer: FencedWriter,
    kind: str,
    message: str,
    run_id: int,
    attempt_id: int | None,
    data: dict[str, int],
    grace_s: float,
) -> bool:
    """Add an event, unless there was one a moment ago; return whether there are enough of them."""
    now_s = writer.store.now(conn)
    since_s = 0.0 if attempt_id else now_s - _LATELY_S
    told = [e for e in queries.events_of_kind(conn, run_id, kind, since_s) if e.data == data]
    told = [event for event in told if attempt_id in (None, event.attempt_id)]
    if len(told) >= PASSES:
        return True
    if not told or not 0 <= now_s - told[-1].ts_s < grace_s:
        queries.add_event(conn, writer.campaign_id, kind, message, run_id=run_id, attempt_id=attempt_id, data=data)
        return len(told) + 1 >= PASSES
    return False
