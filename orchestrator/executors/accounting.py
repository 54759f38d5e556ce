"""What sacct shows of jobs and their steps."""

from __future__ import annotations

import re
from typing import Final

from .base import JobView

SACCT_FORMAT: Final = "JobID,State,ExitCode,Submit,Start,End,NodeList,UID,JobName"


def recorded_job(job_id: str, word: str, exit_code: str, submit: str, start: str, end: str, nodes: str) -> JobView:
    """Return what a line of sacct shows of a job or step."""
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
