"""Attempts as Slurm's jobs: submitted through submitit, which this module alone loads, listed by squeue and sacct.

submitit writes the submission file and calls sbatch; nothing else of it is used. Its payload would be a pickle, and its
view of a job's state is not ours (it takes PREEMPTED for running). Facts of Slurm that matter here:
  - a failed sbatch may have submitted: "Socket timed out on send/recv operation";
  - squeue shows a finished job for MinJobAge seconds, sacct for ever, but only where slurmdbd runs, and it lags;
  - the comment reaches sacct only where AccountingStoreFlags has job_comment, so the token is in the job's name too;
  - `sacct` without -S starts at midnight, and -X hides the step that ran out of memory.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.progress import in_pieces
from dscampaign.sbatch import prologue

from .accounting import SACCT_FORMAT, is_step, ran_out_of_memory, recorded_job, unix_time
from .array_tasks import Jobs, Key, task_numbers, task_views
from .base import (
    ArrayTooLarge,
    JobArray,
    JobListing,
    JobView,
    SubmissionRefused,
    SubmissionUnclear,
    WaitedJob,
    own_python,
    owner,
)
from .sbatch_answer import first_line, last_words, submission_error, submitted_id
from .setup_lines import guarded
from .slurm_commands import NO_ACCOUNTING, TimedOut, ask, own_cluster, run_sbatch
from .waiting_tasks import cancelled

SINCE_SLACK_S = 86_400.0
"""How far before the first submission to query sacct: clocks differ, and a day costs nothing."""

ACCOUNTING_LAG_S = 15.0
"""How long a failure that squeue shows may take to reach sacct: with passes every ten seconds, one more pass."""

CANCEL_LAG_S = 180.0
"""The same for a cancelled job. Only sacct tells who did it, and to mistake Slurm for the user ends a run for good."""

SCRIPT = "submission.sh"

NAMES_AT_ONCE = 2000
"""Batches in one question: Linux takes 128 KiB as one argument, and a token has up to 64 characters."""

_NO_ARRAYS = "this cluster takes no job arrays, which campaign needs (MaxArraySize in slurm.conf, above 1)"

_NO_ACCOUNT = re.compile(r"invalid user", re.IGNORECASE)

SQUEUE_FORMAT = "%i|%T|%r|%V|%S|%e|%N|%U|%j"


class SlurmExecutor:
    """Slurm by its commands, with one squeue and at most one sacct per listing, for thousands of jobs.

    Args:
        folder: of the campaign, whose owner's jobs are listed; this user's without it.
    """

    intent_grace_s = 60.0
    lost_grace_s = 600.0
    outcome_grace_s = 10.0

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._cluster = ""

    @property
    def user(self) -> int:
        """Whose jobs are listed."""
        return owner(self._folder)

    def submit(self, batch: JobArray) -> list[str]:
        """Submits the batch as one array."""
        (sbatch, *rest), given = _command(batch)
        done = run_sbatch([sbatch, "--parsable", *rest], given)
        if done.returncode:
            raise _meaning(done.stdout, done.stderr, batch)
        array_id = submitted_id(done.stdout)
        return [f"{array_id}_{index}" for index in range(batch.size)]

    def forecast(self, batch: JobArray) -> str:
        """Slurm's word on when and where the batch would start; nothing is submitted.

        Raises:
            SubmissionRefused: it would never be accepted, or not while nodes are out of service.
            ArrayTooLarge, Unreachable: not for now.
            SubmissionUnclear: nobody knows.
        """
        (sbatch, *rest), given = _command(batch)
        done = run_sbatch([sbatch, "--test-only", *rest], given)
        if done.returncode:
            error = _meaning("", done.stderr, batch)
            if isinstance(error, SubmissionUnclear) and error.objects:  # of a test there is no job
                raise SubmissionRefused(last_words(str(error)))
            raise error
        return first_line(done.stderr).removeprefix("sbatch: ")

    def list_jobs(
        self, expected: Mapping[str, Collection[int]], since_s: float, waited: Iterable[WaitedJob] = ()
    ) -> JobListing:
        """Runs squeue, and sacct if squeue does not show every expected job alive."""
        if not expected:
            return JobListing({}, True)
        tokens, user = sorted(expected), owner(self._folder)
        parts = (tokens[start : start + NAMES_AT_ONCE] for start in range(0, len(tokens), NAMES_AT_ONCE))
        found = [_list(_Question({token: expected[token] for token in part}, user), since_s) for part in parts]
        jobs = {key: views for part in found for key, views in part.jobs.items()}
        wanted = {(token, index) for token, indexes in expected.items() for index in indexes}
        in_queue = (view for part in found for views in part.queue.values() for view in views.values())
        unrecorded = {key for part in found for key in part.unrecorded}
        jobs |= cancelled(waited, wanted - jobs.keys(), unrecorded, in_queue, _shown_after_end_s, _tasks_of)
        return JobListing(
            jobs={key: job for key, views in jobs.items() if len(views) == 1 for job in views.values()},
            complete=all(part.complete for part in found),
            rivals={key: tuple(views.values()) for key, views in jobs.items() if len(views) > 1},
        )

    def nodes(self) -> int | None:
        """Runs sinfo."""
        try:
            done = ask(["sinfo", "--all", "--noheader", "-N", "-o", "%N"])
        except Unreachable:
            return None
        return len(set(done.stdout.split())) or None

    def cluster(self) -> str:
        """Asks scontrol, once."""
        if not self._cluster:
            with contextlib.suppress(Unreachable):
                self._cluster = own_cluster()
        return self._cluster

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Runs one scancel for thousands."""
        for some in in_pieces("jobs cancelled", job_ids):
            done = ask(["scancel", *some])
            if done.returncode and "Invalid job id" not in done.stderr:
                raise Unreachable(f"scancel: {done.stderr.strip()}", "the jobs go on; the next pass tries again")


def _meaning(stdout: str, stderr: str, batch: JobArray) -> Exception:
    """What a failed sbatch means for a batch: of one job, no array is smaller."""
    error = submission_error(stdout, stderr)
    if batch.size == 1 and isinstance(error, ArrayTooLarge) and not error.for_now:
        return SubmissionRefused(f"{last_words(str(error))}, not even of one job: {_NO_ARRAYS}")
    return error


def job_name(token: str) -> str:
    """The name of a batch's jobs, by which squeue and sacct find them; an earlier version's tokens said nothing."""
    return token if "." in token else f"dscampaign-{token}"


def _command(batch: JobArray) -> tuple[list[str], set[str]]:
    """The command that submits a batch, whose script it writes; and the parameters that the spec decides.

    Raises:
        SubmissionRefused: submitit makes no job of what the spec asks for.
        Unreachable: there is no Slurm here, or submitit is away.
    """
    try:
        array = _job_array(batch)
        return array.command(), set(array.parameters)
    except (Unreachable, OSError):
        raise
    except ImportError as exc:  # while its environment is being updated, or is away: no run's fault
        raise Unreachable(f"submitit cannot be loaded: {exc}", "nothing is lost; the next pass tries again") from exc
    except Exception as exc:
        raise SubmissionRefused(f"submitit: {exc}") from exc


def _job_array(batch: JobArray) -> Any:
    """What submitit makes of a batch.

    Raises:
        Unreachable: there is no Slurm here.
    """
    import submitit  # imported here, as below: `campaign status` must not pay for it

    class SubmititArray(submitit.SlurmExecutor):
        """submitit's executor with our agent as the command and always an array, also for one job."""

        @property
        def _submitit_command_str(self) -> str:
            line = [*own_python(), batch.program, str(batch.folder)]
            return " ".join(shlex.quote(word) for word in line)

        def command(self) -> list[str]:
            """Writes the batch script; returns the command that submits it."""
            self.parameters["map_count"] = batch.size
            script = batch.folder / SCRIPT
            write_atomically(script, self._make_submission_file_text(self._submitit_command_str, batch.token))
            return [str(word) for word in self._make_submission_command(script)]

    try:
        array = SubmititArray(folder=batch.folder)
    except RuntimeError as exc:  # submitit's word for "there is no srun"
        raise Unreachable(f"cannot submit: {exc}", "is this a login node of a Slurm cluster?") from exc
    array.update_parameters(**_parameters(batch))
    return array


def _parameters(batch: JobArray) -> dict[str, Any]:
    """Submitit's parameters: the spec's, and those that are ours alone."""
    resources = dict(batch.resources)
    setup = guarded(resources.pop("setup", ()), batch.folder, '"$SLURM_ARRAY_TASK_ID"')
    elsewhere, to_logs, of_tasks = _logs(batch.folder)
    additional = {"no-requeue": True, **elsewhere, **resources.pop("additional_parameters", {})}
    if batch.workdir:
        additional["chdir"] = batch.workdir
    return {
        "wckey": None,
        **resources,
        "setup": [*to_logs, *prologue(), *setup],
        "job_name": batch.name,
        "comment": f"dscampaign:{batch.token}",
        "ntasks_per_node": 1,
        "additional_parameters": additional,
        # an agent whose peer failed still has evidence to write
        "srun_args": ["--kill-on-bad-exit=0", "--export=ALL", *of_tasks],
    }


def _logs(folder: Path) -> tuple[dict[str, str], list[str], list[str]]:
    """Return what takes logs to a folder whose name Slurm reads as a pattern: options, a line of shell, srun's options.

    Slurm replaces `%` and removes backslashes wherever it opens a log, so the shell opens them. Others need nothing.
    """
    if not {"%", "\\"} & set(str(folder)):
        return {}, [], []
    log = shlex.quote(f"{folder}/") + '"${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}_0_log'
    nowhere = dict.fromkeys(("output", "error"), "/dev/null")
    return nowhere, [f'exec >>{log}.out" 2>>{log}.err"'], ["--output=all", "--error=all"]


@dataclass(frozen=True)
class _Question:
    """As many batches as one command takes, and whose jobs are meant: names are public, and anybody may use them."""

    expected: Mapping[str, Collection[int]]
    user: int

    @property
    def wanted(self) -> set[Key]:
        """The tasks."""
        return {(token, index) for token, indexes in self.expected.items() for index in indexes}

    def ask(self, command: Sequence[str], *, of_all: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Asks squeue or sacct for the user's jobs of these names.

        Args:
            of_all: what lets the command show everybody's: it refuses a number that no account has here, as while the
                directory of accounts is away, and squeue then prints nothing, as if it had gone well.
        """
        names = f"--name={','.join(map(job_name, self.expected))}"
        done = ask([*command, f"--user={self.user}", names])
        return ask([*command, *of_all, names]) if _NO_ACCOUNT.search(done.stderr) else done

    def answers(self, text: str) -> Iterator[list[str]]:
        """The fields of each job of the user's, without the user."""
        # a notice of the site's wrapper, or a cluster's headline, has fewer fields
        lines = (fields for line in text.splitlines() if len(fields := line.split("|", 8)) == 9)
        return ([*fields[:7], fields[8]] for fields in lines if fields[7] in (str(self.user), ""))


@dataclass(frozen=True)
class _Found:
    """The answer, what of it squeue gave, and whether all places were looked at.

    Attributes:
        unrecorded: of what squeue does not show, that of which an accounting has no line.
    """

    jobs: Jobs
    queue: Jobs
    complete: bool = True
    unrecorded: Collection[Key] = ()


def _list(question: _Question, since_s: float) -> _Found:
    jobs = queue = _squeue(question)
    dead = [key for key in question.wanted if key not in jobs or any(job.terminal for job in jobs[key].values())]
    if not dead:
        return _Found(jobs, queue)
    # only the batches of these: of a hundred thousand jobs that wait, a database would look each up in every pass
    asked = _Question({token: question.expected[token] for token in {token for token, _ in dead}}, question.user)
    history = _sacct(asked, since_s, {key for key in dead if key not in jobs})
    if history is None or history.kept:
        jobs = {
            key: {n: _or_unfinished(job, history.job(key, n) if history else None) for n, job in views.items()}
            for key, views in jobs.items()
        }
    if history is None:
        return _Found(jobs, queue, complete=False)
    # what squeue does not show is over: that sacct takes it for alive means that it lags, or will never know
    jobs = dict(jobs)
    for key, views in history.jobs.items():
        shown = jobs.get(key, {})
        told = {n: job for n, job in views.items() if job.terminal and (n not in shown or shown[n].terminal)}
        jobs[key] = shown | told
    unrecorded = [key for key in dead if history.kept and key not in queue and not history.jobs.get(key)]
    return _Found({key: views for key, views in jobs.items() if views}, queue, unrecorded=unrecorded)


def _shown_after_end_s() -> float:
    """For how long squeue shows what has ended; 0 where Slurm does not say."""
    try:
        config = ask(["scontrol", "show", "config"]).stdout
    except Unreachable:  # what squeue has said holds all the same
        return 0.0
    said = re.search(r"^MinJobAge\s*=\s*(\d+)", config, re.MULTILINE)
    return float(said[1]) if said else 0.0


def _tasks_of(array: str) -> set[int] | None:
    """The tasks of an array that slurmctld still has, waiting, running or just ended; None if it does not say."""
    try:
        done = ask(["scontrol", "show", "job", array])
    except Unreachable:
        return None
    named = re.findall(rf"\bArrayJobId={array} ArrayTaskId=(\S+)", done.stdout)
    tasks = [task_numbers(text) for text in named]
    complete = [some for some in tasks if some is not None]
    return {task for some in complete for task in some} if complete and len(complete) == len(tasks) else None


def _squeue(question: _Question) -> Jobs:
    # --all: also jobs in partitions that are hidden from the user
    done = question.ask(["squeue", "--all", "--noheader", "--array", "--states=all", "-o", SQUEUE_FORMAT])
    if done.returncode:
        raise Unreachable(f"squeue: {done.stderr.strip()}")
    seen = []
    for job_id, state, reason, submit, start, end, nodes, name in question.answers(done.stdout):
        times = unix_time(submit), unix_time(start), unix_time(end)  # of a job that runs, its end is a forecast
        seen.append((name, JobView("", 0, job_id, state, reason, *times, "", nodes)))
    return task_views(seen, question.wanted)


@dataclass(frozen=True)
class _History:
    """What the accounting knows; ``kept`` is False where there is none."""

    jobs: Jobs
    kept: bool

    def job(self, key: Key, job_id: str) -> JobView | None:
        """What it knows of one job."""
        return self.jobs.get(key, {}).get(job_id)


def _or_unfinished(job: JobView, told: JobView | None) -> JobView:
    """The job; not yet ended while the accounting may still tell more about its end.

    That a step ran out of memory, or who cancelled a job, squeue does not show. An accounting that lags for long is not
    waited for, and of a job that was cancelled in the queue it may never hear.
    """
    known = told is not None and told.terminal
    patience_s = CANCEL_LAG_S if job.state == "CANCELLED" else ACCOUNTING_LAG_S
    recent = job.ended_s is not None and abs(time.time() - job.ended_s) < patience_s
    may_change = job.state in ("FAILED", "CANCELLED") and not job.cancelled_in_queue
    return job._replace(state="COMPLETING") if may_change and recent and not known else job


def _sacct(question: _Question, since_s: float, unseen: Collection[Key]) -> _History | None:
    """Runs sacct; None if it did not respond."""
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(max(0.0, since_s - SINCE_SLACK_S)))
    try:
        done = question.ask(["sacct", "-nP", "-S", since, "-o", SACCT_FORMAT], of_all=["--allusers"])
    except TimedOut:  # a slurmdbd that hangs must not hide what squeue shows
        return None
    if NO_ACCOUNTING.search(done.stderr):
        return _History({}, kept=False)
    return None if done.returncode else _History(_parse_sacct(done.stdout, question, unseen), kept=True)


def _parse_sacct(text: str, question: _Question, unseen: Collection[Key]) -> Jobs:
    out_of_memory = set()
    seen = []
    for *told, name in question.answers(text):
        job = recorded_job(*told)
        if is_step(job.job_id):
            if ran_out_of_memory(job):
                out_of_memory.add(job.job_id.split(".")[0])
        else:
            seen.append((name, job))
    return {
        key: {n: job._replace(step_out_of_memory=True) if n in out_of_memory else job for n, job in views.items()}
        for key, views in task_views(seen, question.wanted, unseen).items()
    }
