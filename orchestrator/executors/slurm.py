"""Attempts as Slurm's jobs: submitted through submitit, which this module alone loads, listed by `job_listing`.

submitit writes the submission file and its command line; its view of a job's state is not ours.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.orchestrator.commands import in_pieces
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.sbatch import prologue

from .base import (
    ArrayTooLarge,
    JobArray,
    JobListing,
    SubmissionRefused,
    SubmissionUnclear,
    WaitedJob,
    own_python,
    owner,
)
from .job_listing import list_jobs
from .sbatch_answer import first_line, last_words, submission_error, submitted_id
from .setup_lines import guarded
from .slurm_commands import ask, own_cluster, run_sbatch

SCRIPT = "submission.sh"
SHARED_JOB = "dscampaign.jobs.agent.shared_job"

_NO_ARRAYS = "this cluster takes no job arrays, which campaign needs (MaxArraySize in slurm.conf, above 1)"


class SlurmExecutor:
    """Slurm by its commands, for thousands of jobs of a campaign folder's owner; without a folder, this user's."""

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
        """Submit the batch as one array."""
        (sbatch, *rest), options = _command(batch)
        done = run_sbatch([sbatch, "--parsable", *rest], options)
        if done.returncode:
            raise _meaning(done.stdout, done.stderr, batch)
        array_id = submitted_id(done.stdout)
        return [f"{array_id}_{index}" for index in range(batch.size)]

    def forecast(self, batch: JobArray) -> str:
        """Return when and where the batch would start, by Slurm; raise as `submit`. Nothing is submitted."""
        (sbatch, *rest), options = _command(batch)
        done = run_sbatch([sbatch, "--test-only", *rest], options)
        if done.returncode:
            error = _meaning("", done.stderr, batch)
            if isinstance(error, SubmissionUnclear) and error.objects:  # of a test there is no job
                raise SubmissionRefused(last_words(str(error)))
            raise error
        return first_line(done.stderr).removeprefix("sbatch: ")

    def list_jobs(
        self, expected: Mapping[str, Collection[int]], since_s: float, waited: Iterable[WaitedJob] = ()
    ) -> JobListing:
        """Run squeue, and sacct if squeue does not show every expected job alive."""
        return list_jobs(expected, since_s, waited, self.user) if expected else JobListing({}, True)

    def nodes(self) -> int | None:
        """Run sinfo."""
        try:
            done = ask(["sinfo", "--all", "--noheader", "-N", "-o", "%N"])
        except Unreachable:
            return None
        return len(set(done.stdout.split())) or None

    def cluster(self) -> str:
        """Ask scontrol, once."""
        if not self._cluster:
            with contextlib.suppress(Unreachable):
                self._cluster = own_cluster()
        return self._cluster

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Run one scancel for thousands."""
        for some in in_pieces("jobs cancelled", job_ids):
            done = ask(["scancel", *some])
            if done.returncode and "Invalid job id" not in done.stderr:
                message = f"scancel: {done.stderr.strip()}"
                raise Unreachable(message, "the jobs keep running; the next pass tries again", about="scancel")


def _meaning(stdout: str, stderr: str, batch: JobArray) -> Exception:
    """No array is smaller than that of a job."""
    error = submission_error(stdout, stderr)
    if batch.size == 1 and isinstance(error, ArrayTooLarge) and not error.for_now:
        return SubmissionRefused(f"{last_words(str(error))}, not even of one job: {_NO_ARRAYS}")
    return error


def _command(batch: JobArray) -> tuple[list[str], set[str]]:
    """Write the script of a batch; return the command that submits it, and the parameters that the spec decides."""
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
    import submitit  # imported here, as below: `campaign status` must not pay for it

    class SubmititArray(submitit.SlurmExecutor):
        """submitit's executor with our agent as the command and always an array, also for a job."""

        @property
        def _submitit_command_str(self) -> str:
            line = [*own_python(), batch.program, str(batch.folder)]
            if batch.shared:
                delay_s = batch.resources["signal_delay_s"]
                line = [*own_python(), SHARED_JOB, str(batch.folder), str(delay_s), str(batch.lanes)]
            return " ".join(shlex.quote(word) for word in line)

        def command(self) -> list[str]:
            """Write the batch script; return the command that submits it."""
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
    resources = dict(batch.resources)
    setup = guarded(resources.pop("setup", ()), batch.folder, '"$SLURM_ARRAY_TASK_ID"')
    additional = {"no-requeue": True, **resources.pop("additional_parameters", {})}
    if batch.workdir:
        additional["chdir"] = batch.workdir
    return {
        "wckey": None,
        **resources,
        "setup": [*prologue(), *setup],
        "job_name": batch.token,
        "comment": f"dscampaign:{batch.token}",
        "ntasks_per_node": 1,
        "additional_parameters": additional,
        # an agent whose peer failed still has evidence to write
        "srun_args": ["--kill-on-bad-exit=0", "--export=ALL"],
        "use_srun": not batch.shared,  # else it starts a step for each attempt
    }
