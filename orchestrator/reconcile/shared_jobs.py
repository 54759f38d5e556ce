"""The part of an attempt in a job that runs several in turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dscampaign.db.records import AttemptRow
from dscampaign.jobs.agent.evidence import EXIT_NOT_MINE, NodeOutcome
from dscampaign.jobs.shared.job_array import JobRecord
from dscampaign.orchestrator.executors.base import JobView

from .snapshot import JobShare

OUT_OF_MEMORY = "OUT_OF_MEMORY"
WITH_JOB_S = 60.0  # between the ends of a step and of a job that ended it
BY_ITSELF = ("COMPLETED", "FAILED")  # how a job ends that nobody else ended


def share_of(row: AttemptRow, job: JobView | None, record: JobRecord, *, revoked: bool) -> JobShare:
    """Return the part of an attempt in its job; `revoked`: the reconciler has taken its claim."""
    returned = (record.reason or "its job gave it back") if row.array_index in record.returned else ""
    returned = returned or ("taken out of its job" if revoked else "")
    return JobShare(job is not None and not job.pending and not job.terminal, bool(record.begun), returned)


def own_part(
    row: AttemptRow, job: JobView, record: JobRecord, claim: Mapping[str, Any] | None, outcomes: Sequence[NodeOutcome]
) -> JobView:
    """Return an attempt's part of its job as if it were a job of its own.

    Before its turn it waits; once its step or all its nodes have ended, so has its part.
    """
    index = row.array_index or 0
    if claim is None:
        if job.terminal:
            return job
        waits = index not in record.returned
        return job._replace(state="PENDING" if waits else "COMPLETED", started_s=None, ended_s=None)
    job = job._replace(started_s=claim.get("ts", job.started_s))
    end, interrupted = record.ended.get(index), any(outcome.ended_by == "signal" for outcome in outcomes)
    complete = len(outcomes) >= row.nodes and not interrupted
    if end is None and complete and not job.terminal:
        failed = any(outcome.launcher_exit for outcome in outcomes)
        return job._replace(state="FAILED" if failed else "COMPLETED", ended_s=max(o.ended_s for o in outcomes))
    if end is not None and not complete and not end.closed and end.exit != EXIT_NOT_MINE:
        went_on = end.begun is not None and len(record.begun) > end.begun  # with another attempt, after this one
        with_job = job.ended_s is not None and abs(job.ended_s - end.ended_s) < WITH_JOB_S and not went_on
        if interrupted if not job.terminal else with_job and job.state not in BY_ITSELF:
            end = None  # the end of the job reached its step first
    if end is not None:
        state = OUT_OF_MEMORY if end.out_of_memory else "FAILED" if end.exit else "COMPLETED"
        state = "CANCELLED" if end.closed and not complete else state
        job = job._replace(state=state, ended_s=end.ended_s, exit_code=f"{end.exit}:0", cancelled_by=None)
        return job._replace(step_out_of_memory=end.out_of_memory)
    if any(other.out_of_memory for other in record.ended.values()):
        state = "FAILED" if job.state == OUT_OF_MEMORY else job.state
        return job._replace(state=state, step_out_of_memory=False)
    return job
