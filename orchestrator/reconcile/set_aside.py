"""A run or a spool that cannot be read is given up for itself alone; an error of the file system is waited for."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from dscampaign.db import queries
from dscampaign.db.errors import StoreIncomplete, first_line
from dscampaign.db.records import AttemptRow
from dscampaign.files.private_files import concerns_one_file
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.formatting import shorten

from .lease import FencedWriter

UNJUDGED: Final = "unjudged"  # kind of event about a run that cannot be judged
UNREAD: Final = "spool.unreadable"

EVIDENCE: Final = "unreadable"  # rule of a verdict without readable evidence
HINT: Final = "the other runs continue; a retry starts this one again"

_LONGEST: Final = 500


def in_words(error: BaseException) -> str:
    """Return an error in one line; an unforeseen error with its place in the code."""
    message = shorten(first_line(error), _LONGEST)
    if isinstance(error, OSError | UserError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1:]
    location = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in place)
    return f"{type(error).__name__}: {message}{location}"


def unreadable(reason: str) -> Verdict:
    """Return the verdict on an attempt without readable evidence: to try again would not show more."""
    return Verdict(FailureClass.CRASH, reason, HINT, rule=EVIDENCE)


def may_pass(error: BaseException) -> bool:
    """Return whether the file system fails, or a store is being restored; False if a single file is damaged."""
    return isinstance(error, StoreIncomplete) or (isinstance(error, OSError) and not concerns_one_file(error))


def give_up_spool(row: AttemptRow, error: Exception, writer: FencedWriter) -> Unreachable | None:
    """Pass over a spool that cannot be read, with one event; return the trouble if it is tried again."""
    message = f"cannot read metrics: {in_words(error)}"
    if may_pass(error):
        return Unreachable(message, "nothing is lost; the next pass tries again", about="metrics")
    with writer.write() as conn:
        events = queries.events(conn, writer.campaign_id, row.run_id, kind=UNREAD)
        if all(event.attempt_id != row.id for event in events):
            writer.event(conn, UNREAD, message, row)
    return None
