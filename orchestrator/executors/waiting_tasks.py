"""Tasks that were seen to wait: one that is cancelled alone in the queue leaves no trace.

The accounting has no line of it either, and says of its array what was submitted. But Slurm shows
what has ended for a while, its MinJobAge. What waited a shorter time ago, and is not shown although others of its array
are, never began: it was cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from .array_tasks import Jobs, Key
from .base import JobView


class WaitingTasks:
    """What this process has seen waiting."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Key, tuple[JobView, float]] = {}

    def cancelled(self, shown: Iterable[JobView], absent: Collection[Key], shown_s: Callable[[], float]) -> Jobs:
        """Those of the absent tasks that were cancelled.

        Args:
            shown: what squeue shows: that the accounting knows an array does not say that Slurm still does.
            absent: what neither squeue nor the accounting knows.
            shown_s: for how long Slurm shows what has ended.
        """
        arrays = {_array(job) for job in shown}
        seen = {key: self._seen[key] for key in absent if key in self._seen and _array(self._seen[key][0]) in arrays}
        since_s = self._clock() - shown_s() if seen else 0.0
        gone = [
            (key, job._replace(state="CANCELLED", reason="")) for key, (job, at_s) in seen.items() if at_s > since_s
        ]
        return {key: {job.job_id: job} for key, job in gone}

    def note(self, jobs: Jobs, wanted: Collection[Key]) -> None:
        """Remembers what waits now; of what is not wanted any more, nothing is remembered."""
        now_s = self._clock()
        waiting = {key: (job, now_s) for key, views in jobs.items() for job in views.values() if job.pending}
        before = {key: seen for key, seen in self._seen.items() if key in wanted and key not in jobs}
        self._seen = {**before, **waiting}


def _array(job: JobView) -> str:
    return job.job_id.partition("_")[0]
