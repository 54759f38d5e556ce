"""One job of anybody's by its id: its end as Slurm knows it, and the files that hold its output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dscampaign.orchestrator.errors import Unreachable, UserError

from .base import JobView
from .job_listing import SACCT_FORMAT, is_step, ran_out_of_memory, recorded_job
from .sbatch_answer import plain
from .slurm_commands import ask

JOB_ID: Final = re.compile(r"\d+(?:_\d+)?")
_FIELDS: Final = ("JobState", "ExitCode", "SubmitTime", "StartTime", "EndTime", "NodeList")


@dataclass(frozen=True)
class OneJob:
    """A job; `source` is the command that knew it, `logs` are empty if Slurm does not name them any more."""

    view: JobView
    source: str
    logs: tuple[Path, ...] = ()


def find_job(job_id: str) -> OneJob:
    """Ask scontrol, which forgets a job minutes after its end, then sacct; raise UserError or Unreachable."""
    if not JOB_ID.fullmatch(job_id):
        raise UserError(f"{job_id} is not a job id", "give the number that sbatch printed, with an array's task: 12_3")
    trouble = recent = recorded = None
    try:
        recent = _by_scontrol(job_id)
    except Unreachable as error:
        trouble = error
    try:
        recorded = _by_sacct(job_id)
    except Unreachable as error:
        trouble = trouble or error
    logs = recent.logs if recent else ()
    if recorded and (recorded.view.terminal or not recent):
        reason = recent.view.reason if recent else ""
        return OneJob(recorded.view._replace(reason=reason), recorded.source, logs)
    if recent:
        return recent
    if trouble:
        raise trouble
    raise UserError(f"Slurm knows no job {job_id}", "give its log instead: Slurm without accounting soon forgets a job")


def _by_scontrol(job_id: str) -> OneJob | None:
    done = ask(["scontrol", "show", "job", job_id])
    if done.returncode:
        if "Invalid job id" in done.stderr:
            return None
        raise Unreachable(plain(done.stderr), "try again, or give the job's log")
    fields = dict(re.findall(r"(?:^|(?<=\s))(\w+)=(\S*)", done.stdout))
    if done.stdout.count("JobId=") > 1 and "_" not in job_id and "ArrayTaskId=" in done.stdout:
        raise UserError(f"job {job_id} is an array", f"name a task, for example {job_id}_0")
    names = re.findall(r"^\s*Std(?:Err|Out)=(.+)$", done.stdout, re.MULTILINE)
    state, code, submit, start, end, nodes = (fields.get(name, "") for name in _FIELDS)
    job = recorded_job(job_id, "", code, submit, start, end, nodes)
    view = job._replace(state=state, reason=fields.get("Reason", ""))
    return OneJob(view, "scontrol", tuple(dict.fromkeys(Path(name) for name in names)))


def _by_sacct(job_id: str) -> OneJob | None:
    done = ask(["sacct", "-nP", "-j", job_id, "-o", SACCT_FORMAT])
    if done.returncode:
        raise Unreachable(plain(done.stderr), "try again, or give the job's log")
    lines = (line.split("|", 8) for line in done.stdout.splitlines())
    views = [recorded_job(*fields[:7]) for fields in lines if len(fields) == 9]
    job = next((view for view in views if view.job_id == job_id), None)
    if job is None and any(view.job_id.startswith(f"{job_id}_") for view in views):
        raise UserError(f"job {job_id} is an array", f"name a task, for example {job_id}_0")
    starved = any(ran_out_of_memory(view) for view in views if is_step(view.job_id))
    return OneJob(job._replace(step_out_of_memory=starved), "sacct") if job else None
