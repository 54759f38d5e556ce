"""Slurm's word for how a job ended, where that decides. Pure."""

from __future__ import annotations

import re
from typing import Final

from dscampaign.jobs.agent.evidence import LogLine
from dscampaign.orchestrator.executors.base import JobView

from .evidence import Ended
from .policy import FailureClass
from .verdict import Verdict

_NOT_MINE: Final = "75:0"
"""How a job ends whose attempt is taken: by its own first start, where agents have left an outcome."""


def ended_by_slurm(ended: Ended) -> Verdict | None:
    """What Slurm did to the job: it preempted, cancelled or requeued it, or lost its node; None for nothing."""
    job = ended.job
    if again := _started_again(ended):
        return Verdict(FailureClass.PREEMPTED, "Slurm ended the job and started it again", "", again, "slurm-requeue")
    return _by_state(job, ended) if job else None


def _by_state(job: JobView, ended: Ended) -> Verdict | None:
    proof = LogLine("slurm", 0, _said(job))
    if job.state == "PREEMPTED":
        return Verdict(FailureClass.PREEMPTED, "preempted by a job of higher priority", "", proof, "slurm-state")
    if job.state == "CANCELLED":
        return Verdict(FailureClass.CANCELLED, "the job was cancelled outside this program", "", proof, "slurm-state")
    if job.state == "DEADLINE" and not ended.outcomes and job.never_began:
        reason, hint = "its deadline passed in the queue", "give `slurm.deadline` more time, or leave it out"
        return Verdict(FailureClass.REFUSED, reason, hint, proof, "slurm-deadline")
    if job.state in ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED"):
        host = job.nodes if re.fullmatch(r"[\w.-]+", job.nodes) else ""
        reason = f"Slurm: {job.state} on {job.nodes or 'its nodes'}"
        return Verdict(FailureClass.NODE, reason, "", proof, "slurm-state", host)
    return None


def _started_again(ended: Ended) -> LogLine | None:
    """What shows that Slurm has ended the job, as after `scontrol requeue`, and not its ranks; None for nothing."""
    job, outcomes = ended.job, ended.outcomes
    again = ended.started_again or (outcomes and job is not None and job.exit_code == _NOT_MINE)
    interrupted = any(outcome.ended_by == "signal" for outcome in outcomes)
    by_itself = any(rank.exit or rank.error for outcome in outcomes for rank in outcome.ranks)
    if not again or (by_itself and not interrupted):  # its signal may have come to the ranks a moment before the agent
        return None
    return LogLine("slurm", 0, _said(job) if job else "the job began again")


def _said(job: JobView) -> str:
    return f"{job.state} {job.exit_code} {job.reason}".strip()
