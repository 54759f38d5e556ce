"""Limits that keep runs from starting: GPU-hours, a folder that is not writable, missing variables. Pure."""

from __future__ import annotations

from contextlib import suppress

from dscampaign.db.campaigns import running_s
from dscampaign.db.records import AttemptRow
from dscampaign.db.states import TERMINAL_ATTEMPT, Cause, CauseCode, RunState
from dscampaign.orchestrator.executors.job_request import code_of, gpus_per_rank
from dscampaign.orchestrator.spec.model import RunConfig

from .origin import why_held
from .snapshot import RunView, Snapshot


def gate(snapshot: Snapshot) -> tuple[RunState, str, Cause | None] | None:
    """Return the state of runs that wait, and why the campaign may start no attempt now; None if it may."""
    if snapshot.storage:
        return RunState.PENDING, f"waits until the campaign's folder is writable: {snapshot.storage}", None
    if reason := why_held(snapshot.missing):
        return RunState.HELD, reason, Cause(CauseCode.MISSING_VARIABLES, tuple(snapshot.missing))
    limit = snapshot.campaign.limits.get("gpu_hours")
    if limit is not None and (used := gpu_hours(snapshot)) >= limit:
        hint = "raise it in the spec and submit again"
        return RunState.HELD, f"limits.gpu_hours = {limit:g} is used up ({used:.3g} h); {hint}", None
    return None


def code_lost(view: RunView, snapshot: Snapshot) -> tuple[RunState, str] | None:
    """Return the state of a run whose code is lost, and why; None if it can start."""
    why = snapshot.damaged.get(code_of(view.run, view.config))
    hint = "a retry takes the code as it is now"
    return (RunState.HELD, f"its copy of the code cannot be used: {why}; {hint}") if why else None


def gpu_hours(snapshot: Snapshot) -> float:
    """Return the GPU-hours of all attempts of the campaign until now, however they or their runs ended."""
    used = [_rank_seconds(row, snapshot.now_s) for broken in snapshot.broken for row in broken.attempts]
    used += [_used_s(view, snapshot.now_s) for view in snapshot.runs]
    return (snapshot.gpu_seconds + sum(used)) / 3600


def _used_s(view: RunView, now_s: float) -> float:
    """The configuration of a run that has used nothing is not read."""
    seconds = sum(_rank_seconds(attempt.row, now_s) for attempt in view.attempts)
    return seconds * gpus_per_rank(_config(view)) if seconds else 0.0


def _config(view: RunView) -> RunConfig | None:
    with suppress(Exception):
        return view.config
    return None


def _rank_seconds(row: AttemptRow, now_s: float) -> float:
    unended_s = 0.0 if row.state in TERMINAL_ATTEMPT else running_s(row.started_s, row.created_s, now_s)
    return row.gpu_seconds or row.world_size * unended_s


def max_active(snapshot: Snapshot) -> int | None:
    """Return how many attempts may be active at once; None for no limit."""
    limits = (snapshot.capacity, snapshot.campaign.limits.get("running"))
    return min((limit for limit in limits if limit is not None), default=None)
