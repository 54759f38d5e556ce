"""The tasks of our job arrays, from the lines of squeue and sacct.

A task has a line of its own from its beginning. Those that wait share one, ``37_[0-3,7:2%4]``, and if the array is
cancelled, that line shows it; once no task waits, its id may be a plain ``37``. A task that is cancelled alone while it
waits only disappears from the shared line: the only sign is that the others are known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from .base import JobView, WaitedJob

Key = tuple[str, int]

Jobs = dict[Key, dict[str, JobView]]
"""By attempt and job id: after a repeated request, an attempt has two jobs."""

MISSED_S: Final = 180.0
"""How long a line may take to reach the accounting."""

_JOB_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[(.*)\]))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_NAME = re.compile(r"dscampaign-(\w+)|(.+\..+)")


@dataclass
class _Array:
    """The lines about one array: those of its tasks, and the shared one, with the tasks that it names."""

    tasks: dict[int, JobView] = field(default_factory=dict)
    shared: JobView | None = None
    named: Collection[int] | None = None

    def view(self, index: int, *, unseen: bool) -> JobView | None:
        """Return the view of a task; `unseen`: without any line it was cancelled in the queue."""
        if index in self.tasks:
            return self.tasks[index]
        line = self.shared or next(iter(self.tasks.values()))
        if not line.terminal or line is not self.shared:
            waits = self.shared is not None and (self.named is None or index in self.named)
            if waits or not unseen:
                return None
            line = line._replace(state="CANCELLED", ended_s=None, exit_code="", cancelled_by=None)
        job_id = f"{line.job_id.partition('_')[0]}_{index}"
        return line._replace(task=index, job_id=job_id, started_s=None, nodes="", inferred=True)


def task_views(lines: Iterable[tuple[str, JobView]], wanted: Collection[Key], unseen: Collection[Key] = ()) -> Jobs:
    """Return the views of the wanted tasks by job id; a request that was sent twice has made two arrays.

    Args:
        lines: The name of a job, and its view; those of others are skipped.
        unseen: Tasks that squeue does not show: the accounting has a line of them if they ever began.
    """
    arrays: dict[str, dict[str, _Array]] = defaultdict(lambda: defaultdict(_Array))
    tokens = {token: token for token, _ in wanted}  # ten thousand lines name the same few
    for name, line in lines:
        job, ours = _JOB_ID.fullmatch(line.job_id), _NAME.fullmatch(name)
        if not job or not ours:
            continue
        token, (number, task, tasks_text) = tokens.get(ours[1] or ours[2]), job.groups()
        if token is None:
            continue
        array = arrays[token][number]
        if task is None:
            array.shared, array.named = line._replace(token=token), task_numbers(tasks_text)
        else:
            array.tasks[int(task)] = line._replace(token=token, task=int(task))
    by_task = {}
    for token, index in sorted(wanted):
        listed = arrays[token].values()
        views = [view for array in listed if (view := array.view(index, unseen=(token, index) in unseen))]
        # of two arrays, one that says nothing of a task may hide that it waits
        own = [array.tasks[index] for array in listed if index in array.tasks]
        if chosen := own or (views if len(views) == len(listed) else []):
            by_task[token, index] = {view.job_id: view for view in chosen}
    return by_task


def task_numbers(text: str | None) -> Collection[int] | None:
    """Return the tasks that a shared line names; None if it names none, or not all: ``[1-2,6,...]``."""
    numbers: set[int] = set()
    for part in (text or "").partition("%")[0].split(","):
        if not (match := _RANGE.fullmatch(part)):
            return None
        first, last, step = match.groups()
        numbers.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return numbers


def cancelled(
    waited: Iterable[WaitedJob],
    absent: Collection[Key],
    unrecorded: Collection[Key],
    shown: Iterable[JobView],
    shown_s: Callable[[], float],
    tasks_of: Callable[[str], Collection[int] | None],
) -> Jobs:
    """Return the absent tasks that were cancelled alone in the queue, which leaves no trace, nor a line of sacct.

    The controller itself is asked for the tasks of the array, as a list of the queue may lack some. A task that it does
    not name was cancelled before it began, if it waited a short time ago (Slurm shows ended jobs for a while), or if
    it is missing for long and unknown to an accounting, which has a line for every task that begins.

    Args:
        absent: Tasks that neither squeue nor the accounting shows.
        unrecorded: Those of them that an accounting would know if they had begun.
        shown: The jobs in squeue.
        shown_s: Returns for how long Slurm shows ended jobs.
        tasks_of: Returns the tasks of an array that the controller names; None if unknown.
    """
    missed = [entry for entry in waited if (entry.token, entry.task) in absent] if absent else []
    arrays = {_array(job) for job in shown} if missed else set()
    listed = [entry for entry in missed if _array(entry) in arrays]
    least_s = shown_s() if listed else 0.0
    missed = [
        entry
        for entry in listed
        if entry.ago_s < least_s or (entry.missed_s >= MISSED_S and (entry.token, entry.task) in unrecorded)
    ]
    tasks_by_array = {array: tasks_of(array) for array in {_array(entry)[1] for entry in missed}}
    return {
        (entry.token, entry.task): {
            entry.job_id: JobView(entry.token, entry.task, entry.job_id, "CANCELLED", inferred=True)
        }
        for entry in missed
        if (tasks := tasks_by_array[_array(entry)[1]]) is not None and entry.task not in tasks
    }


def _array(job: JobView | WaitedJob) -> tuple[str, str]:
    return job.token, job.job_id.partition("_")[0]
