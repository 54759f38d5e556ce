"""Tasks that are known to have waited: one that is cancelled alone in the queue leaves no trace.

The accounting has no line of it either, and says of its array what was submitted. A list of the queue may lack some, so
the controller itself is asked for the tasks of the array. What it does not name either was cancelled before it began,

- if it waited a short time ago: Slurm shows what has ended for a while, its MinJobAge;
- if it has been missed for long, and an accounting knows nothing of it: there every task that begins gets a line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from .array_tasks import Jobs, Key
from .base import JobView, WaitedJob

MISSED_S: Final = 180.0
"""How long a line may take to reach the accounting."""


def cancelled(
    waited: Iterable[WaitedJob],
    absent: Collection[Key],
    unrecorded: Collection[Key],
    shown: Iterable[JobView],
    shown_s: Callable[[], float],
    tasks_of: Callable[[str], Collection[int] | None],
) -> Jobs:
    """Those of the absent tasks that were cancelled.

    Args:
        waited: what is known to have waited.
        absent: what neither squeue nor the accounting shows.
        unrecorded: of these, those of which there would be a line in the accounting if they had begun.
        shown: what squeue shows: that the accounting knows an array does not say that Slurm still does.
        shown_s: for how long Slurm shows what has ended.
        tasks_of: which tasks of an array the controller names, by the array's number; None if it does not say.
    """
    missed = [one for one in waited if (one.token, one.task) in absent] if absent else []
    arrays = {_array(job) for job in shown} if missed else set()
    known = [one for one in missed if _array(one) in arrays]
    least_s = shown_s() if known else 0.0
    missed = [
        one
        for one in known
        if one.ago_s < least_s or (one.missed_s >= MISSED_S and (one.token, one.task) in unrecorded)
    ]
    named = {array: tasks_of(array) for array in {_array(one)[1] for one in missed}}
    return {
        (one.token, one.task): {one.job_id: JobView(one.token, one.task, one.job_id, "CANCELLED", inferred=True)}
        for one in missed
        if (tasks := named[_array(one)[1]]) is not None and one.task not in tasks
    }


def _array(job: JobView | WaitedJob) -> tuple[str, str]:
    """Batch and number of its array: a Slurm that lost its state gives out numbers again."""
    return job.token, job.job_id.partition("_")[0]
