"""What stops all runs of a campaign at once: used-up GPU-hours, a folder that is not writable. Pure."""

from __future__ import annotations

from ...db.records import RunState
from .snapshot import Snapshot


def gate(snapshot: Snapshot) -> tuple[RunState, str] | None:
    """State of the runs that wait, and why the campaign may start no attempt now; None if it may."""
    if snapshot.storage:
        return RunState.PENDING, f"waits until the campaign's folder is writable: {snapshot.storage}"
    limit = snapshot.campaign.limits.get("gpu_hours")
    if limit is not None and (used := gpu_hours(snapshot)) >= limit:
        hint = "raise it in the spec and submit again"
        return RunState.HELD, f"limits.gpu_hours = {limit:g} is used up ({used:.3g} h); {hint}"
    return None


def gpu_hours(snapshot: Snapshot) -> float:
    """GPU-hours of all attempts of the campaign until now, failed ones and those that run included."""
    seconds = 0.0
    for view in snapshot.runs:
        for attempt in view.attempts:
            row = attempt.row
            running_s = max(0.0, snapshot.now_s - row.started_s) if attempt.active and row.started_s else 0.0
            seconds += row.gpu_seconds or row.world_size * running_s
    return seconds / 3600


def max_active(snapshot: Snapshot) -> int | None:
    """Attempts that may be active at once; None for no limit of ours."""
    limits = (snapshot.capacity, snapshot.campaign.limits.get("running"))
    return min((limit for limit in limits if limit is not None), default=None)
