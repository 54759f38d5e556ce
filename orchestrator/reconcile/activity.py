"""What attempts are doing, and where, as a pass sees it: for people, nothing is decided by it."""

from __future__ import annotations

from dataclasses import dataclass

from dscampaign.db import queries
from dscampaign.db.records import ENDING, SUSPENDED
from dscampaign.db.states import ACTIVE_ATTEMPT, RunState
from dscampaign.jobs.agent.progress import QUIET_START
from dscampaign.jobs.report import UNSAID

from .lease import FencedWriter
from .snapshot import AttemptView, Snapshot


@dataclass(frozen=True)
class Activity:
    """What an attempt was last seen doing, since when by the store's clock, and on which nodes."""

    phase: str
    phase_since_s: float | None
    node_list: str


def record_activities(snapshot: Snapshot, writer: FencedWriter) -> None:
    """Records those that have changed, and why runs wait in the queue where that has."""
    if snapshot.queue.news:
        with writer.write() as conn:
            for (reason, cause), run_ids in snapshot.queue.news.items():
                queries.update_runs(conn, run_ids, expect_state=RunState.QUEUED, reason=reason, cause=cause)
    if changed := activities(snapshot):
        with writer.write() as conn:
            states = queries.lock_attempts(conn, list(changed))
            seen = {found: vars(now) for found, now in changed.items() if states.get(found) in ACTIVE_ATTEMPT}
            queries.change_attempts(conn, seen)


def activities(snapshot: Snapshot) -> dict[int, Activity]:
    """By id, what is new of the attempts that may still run."""
    newest = (view.latest for view in snapshot.runs)
    found = ((attempt, _activity(attempt, snapshot.now_s)) for attempt in newest if attempt and attempt.active)
    return {
        attempt.row.id: now
        for attempt, now in found
        if now and (now.phase, now.node_list) != (attempt.row.phase, attempt.row.node_list)
    }


def _activity(attempt: AttemptView, now_s: float) -> Activity | None:
    """What its slowest rank does; None where the executor does not show its job."""
    row, job = attempt.row, attempt.job
    if job is None or job.pending or job.cancelled_in_queue:
        return Activity("", None, "") if job else None
    slowest = min(attempt.heartbeats, key=lambda beat: beat.step, default=None)
    phase, for_s = (slowest.phase, slowest.phase_s or 0.0) if slowest else (QUIET_START, 0.0)
    if phase == QUIET_START and (row.last_step or 0) > (row.start_step or 0):
        phase, for_s = UNSAID, 0.0  # its steps are here before the heartbeat that says so
    if job.state in ("SUSPENDED", "STOPPED"):
        phase, for_s = SUSPENDED, 0.0
    if attempt.complete or job.terminal or job.state == "COMPLETING":
        phase, for_s = ENDING, 0.0
    return Activity(phase, row.phase_since_s if phase == row.phase else now_s - for_s, job.nodes or row.node_list)
