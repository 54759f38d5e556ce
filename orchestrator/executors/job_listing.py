"""Jobs as squeue and sacct show them: one squeue and at most one sacct for thousands.

Facts of Slurm that matter here:
  - squeue shows a finished job for MinJobAge seconds, sacct for ever, but only where slurmdbd runs, and it lags;
  - the comment reaches sacct only where AccountingStoreFlags has job_comment, so jobs are found by name;
  - `sacct` without -S starts at midnight, and -X hides the step that ran out of memory;
  - a task has a line of its own from its beginning; those that wait share one, ``37_[0-3,7:2%4]``, which an array that
    is cancelled keeps; a task that is cancelled alone while it waits only disappears from it.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dscampaign.orchestrator.errors import Unreachable

from .base import JobListing, JobView, WaitedJob
from .slurm_commands import NO_ACCOUNTING, TimedOut, ask

SINCE_SLACK_S = 86_400.0
"""How far before the first submission to query sacct: clocks differ, and a day costs nothing."""

ACCOUNTING_LAG_S = 15.0
"""How long a failure that squeue shows may take to reach sacct: with passes every ten seconds, one more pass."""

CANCEL_LAG_S = 180.0
"""The same for a cancelled job. Only sacct knows the user, and to mistake Slurm for the user ends a run for good."""

NAMES_AT_ONCE = 2000
"""Batches in a question: Linux takes 128 KiB as an argument, and a token has up to 64 characters."""

Key = tuple[str, int]

Jobs = dict[Key, dict[str, JobView]]
"""By attempt and job id: after a repeated request, an attempt has two jobs."""

MISSED_S: Final = 180.0
"""How long a line may take to reach the accounting."""

_JOB_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[(.*)\]))?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_NO_ACCOUNT = re.compile(r"invalid user", re.IGNORECASE)

SQUEUE_FORMAT: Final = "%i|%T|%r|%V|%S|%e|%N|%U|%j"
SACCT_FORMAT: Final = "JobID,State,ExitCode,Submit,Start,End,NodeList,UID,JobName"


def list_jobs(
    expected: Mapping[str, Collection[int]], since_s: float, waited: Iterable[WaitedJob], user: int
) -> JobListing:
    """Return a user's jobs, see `Executor.list_jobs`."""
    jobs: Jobs = {}
    in_queue: list[JobView] = []
    unrecorded: set[Key] = set()
    complete = True
    tokens = sorted(expected)
    for start in range(0, len(tokens), NAMES_AT_ONCE):
        question = _Question({token: expected[token] for token in tokens[start : start + NAMES_AT_ONCE]}, user)
        queue = _squeue(question)
        in_queue += (view for views in queue.values() for view in views.values())
        dead = [key for key in question.wanted if key not in queue or any(job.terminal for job in queue[key].values())]
        # about these alone: a database would look up each of a hundred thousand jobs that wait
        about = _Question({token: expected[token] for token in {token for token, _ in dead}}, user)
        records = _sacct(about, since_s, {key for key in dead if key not in queue}) if dead else None
        if records is None:
            jobs |= queue
            continue
        recorded, answered = records
        joined = {key: _joined(queue.get(key, {}), recorded.get(key, {})) for key in queue.keys() | recorded.keys()}
        jobs |= {key: views for key, views in joined.items() if views}
        complete = complete and answered
        unrecorded |= {key for key in dead if answered and key not in queue and not recorded.get(key)}
    wanted = {(token, index) for token, indexes in expected.items() for index in indexes}
    jobs |= cancelled(waited, wanted - jobs.keys(), unrecorded, in_queue, _shown_after_end_s, _tasks_of)
    return JobListing(
        jobs={key: job for key, views in jobs.items() if len(views) == 1 for job in views.values()},
        complete=complete,
        rivals={key: tuple(views.values()) for key, views in jobs.items() if len(views) > 1},
    )


@dataclass(frozen=True)
class _Question:
    """As many batches as one command takes, and the user of their jobs: anybody may use their names."""

    expected: Mapping[str, Collection[int]]
    user: int

    @property
    def wanted(self) -> set[Key]:
        return {(token, index) for token, indexes in self.expected.items() for index in indexes}

    def ask(self, command: Sequence[str], *, of_all: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Ask squeue or sacct for the user's jobs of these names; `of_all` are options that show everybody's.

        Both refuse a number without an account on this host, and squeue then prints nothing, as if it had gone well.
        """
        names = f"--name={','.join(self.expected)}"
        done = ask([*command, f"--user={self.user}", names])
        return ask([*command, *of_all, names]) if _NO_ACCOUNT.search(done.stderr) else done

    def answers(self, text: str) -> Iterator[list[str]]:
        """Return the fields of each job of the user's, without the user."""
        # a notice of the site's wrapper, or a cluster's headline, has fewer fields
        lines = (fields for line in text.splitlines() if len(fields := line.split("|", 8)) == 9)
        return ([*fields[:7], fields[8]] for fields in lines if fields[7] in (str(self.user), ""))


def _joined(shown: Mapping[str, JobView], recorded: Mapping[str, JobView]) -> dict[str, JobView]:
    """A job that squeue does not show is over: a record of it as alive lags, or will never be corrected."""
    ends = {job_id: job for job_id, job in recorded.items() if job.terminal}
    jobs = {job_id: job if job_id in ends else _until_recorded(job) for job_id, job in shown.items()}
    return jobs | {job_id: end for job_id, end in ends.items() if job_id not in jobs or jobs[job_id].terminal}


def _until_recorded(job: JobView) -> JobView:
    # squeue shows neither that a step ran out of memory nor who cancelled a job. An accounting that lags for long is
    # not waited for, and it may never hear of a job that was cancelled in the queue.
    patience_s = CANCEL_LAG_S if job.state == "CANCELLED" else ACCOUNTING_LAG_S
    recent = job.ended_s is not None and abs(time.time() - job.ended_s) < patience_s
    may_change = job.state in ("FAILED", "CANCELLED") and not job.cancelled_in_queue
    return job._replace(state="COMPLETING") if may_change and recent else job


def _squeue(question: _Question) -> Jobs:
    # --all: also jobs in partitions that are hidden from the user
    done = question.ask(["squeue", "--all", "--noheader", "--array", "--states=all", "-o", SQUEUE_FORMAT])
    if done.returncode:
        raise Unreachable(f"squeue: {done.stderr.strip()}", about="squeue")
    listed = []
    for job_id, state, reason, submit, start, end, nodes, name in question.answers(done.stdout):
        times = unix_time(submit), unix_time(start), unix_time(end)  # the end of a running job is a forecast
        listed.append((name, JobView("", 0, job_id, state, reason, *times, "", nodes)))
    return _task_views(listed, question.wanted)


def _sacct(question: _Question, since_s: float, unseen: Collection[Key]) -> tuple[Jobs, bool] | None:
    """Return the jobs, and whether the accounting responded; None if the cluster has none."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(max(0.0, since_s - SINCE_SLACK_S)))
    try:
        done = question.ask(["sacct", "-nP", "-S", since, "-o", SACCT_FORMAT], of_all=["--allusers"])
    except TimedOut:  # a slurmdbd that hangs must not hide what squeue shows
        return {}, False
    if NO_ACCOUNTING.search(done.stderr):
        return None
    return ({}, False) if done.returncode else (_parse_sacct(done.stdout, question, unseen), True)


def _parse_sacct(text: str, question: _Question, unseen: Collection[Key]) -> Jobs:
    out_of_memory = set()
    listed = []
    for *fields, name in question.answers(text):
        job = recorded_job(*fields)
        if is_step(job.job_id):
            if ran_out_of_memory(job):
                out_of_memory.add(job.job_id.split(".")[0])
        else:
            listed.append((name, job))
    return {
        key: {n: job._replace(step_out_of_memory=True) if n in out_of_memory else job for n, job in views.items()}
        for key, views in _task_views(listed, question.wanted, unseen).items()
    }


def recorded_job(job_id: str, word: str, exit_code: str, submit: str, start: str, end: str, nodes: str) -> JobView:
    """Return the job or step of a line of sacct."""
    # "CANCELLED by 1000" is somebody's wish. Without a name it is how Slurm closes the books on jobs that it lost.
    state = "GONE" if word == "CANCELLED" else word.partition(" ")[0]
    by = re.fullmatch(r"CANCELLED by (\d+)", word)
    times = unix_time(submit), unix_time(start), unix_time(end)
    return JobView("", 0, job_id, state, "", *times, exit_code, nodes, cancelled_by=int(by[1]) if by else None)


def is_step(job_id: str) -> bool:
    """Return whether the id is that of a step; `12_[1,...]` is an array."""
    return "." in job_id.partition("[")[0]


def ran_out_of_memory(step: JobView) -> bool:
    """Return whether a step did, which the state of its job may hide."""
    return step.state == "OUT_OF_MEMORY" or step.exit_code == "0:125"


def unix_time(text: str) -> float | None:
    """Return a time that Slurm shows, None if it is not known."""
    return float(text) if text.isdigit() else None


def _shown_after_end_s() -> float:
    """Return for how long squeue shows ended jobs; 0 if unknown."""
    try:
        config = ask(["scontrol", "show", "config"]).stdout
    except Unreachable:  # the answer of squeue holds all the same
        return 0.0
    age = re.search(r"^MinJobAge\s*=\s*(\d+)", config, re.MULTILINE)
    return float(age[1]) if age else 0.0


def _tasks_of(array: str) -> set[int] | None:
    """Return the tasks of an array that slurmctld still has, waiting, running or just ended; None if unknown."""
    try:
        done = ask(["scontrol", "show", "job", array])
    except Unreachable:
        return None
    texts = re.findall(rf"\bArrayJobId={array} ArrayTaskId=(\S+)", done.stdout)
    tasks = [_task_numbers(text) for text in texts]
    complete = [some for some in tasks if some is not None]
    return {task for some in complete for task in some} if complete and len(complete) == len(tasks) else None


# The tasks of an array


@dataclass
class _Array:
    """The lines about an array: its tasks' own, and the shared line with the tasks that it names."""

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


def _task_views(lines: Iterable[tuple[str, JobView]], wanted: Collection[Key], unseen: Collection[Key] = ()) -> Jobs:
    """Return the views of the wanted tasks by job id; a request that was sent twice has made two arrays.

    Args:
        lines: The name of a job, and its view; jobs of others are skipped.
        unseen: Tasks that squeue does not show: the accounting has a line of them if they ever began.
    """
    arrays: dict[str, dict[str, _Array]] = defaultdict(lambda: defaultdict(_Array))
    tokens = {token: token for token, _ in wanted}  # ten thousand lines name the same few
    for name, line in lines:
        token, job = tokens.get(name), _JOB_ID.fullmatch(line.job_id)
        if token is None or not job:
            continue
        number, task, tasks_text = job.groups()
        array = arrays[token][number]
        if task is None:
            array.shared, array.named = line._replace(token=token), _task_numbers(tasks_text)
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


def _task_numbers(text: str | None) -> Collection[int] | None:
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
