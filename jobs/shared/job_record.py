"""The record that a job of several attempts keeps. Attempts are named by their places in the job array's payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .documents import Document, Number, Time, Whole

EARLY_S = 60.0  # how early Slurm may send the signal to stop, by sbatch's manual


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's step, in a job that went on; `closed`: the attempt was to end."""

    exit: Number
    ended_s: Time
    out_of_memory: bool = False
    closed: bool = False


@dataclass(frozen=True)
class JobRecord(Document):
    """The attempts whose agents a job started, how they ended, and attempts that it will not begin, for a `reason`.

    The job's own end is that of any that has begun and not ended.
    """

    begun: tuple[Whole, ...] = ()
    ended: Mapping[int, StepEnd] = field(default_factory=dict)
    returned: tuple[Whole, ...] = ()
    reason: str = ""


def job_record(batch: Path, job_id: str) -> Path:
    """Return the path of a job's record."""
    return batch / f"job-{job_id}.json"


def joining(batch: Path, task: int, token: str) -> Path:
    """Return the path of the file that has the running job of a task take another submission's attempts."""
    return batch / f"{joining_prefix(task)}{token}"


def joining_prefix(task: int) -> str:
    """Return the beginning of that file's name; the token follows."""
    return f"joins-{task}-"


def run_log(batch: Path, job_id: str, index: int, stream: str) -> Path:
    """Return the path of what the agents of an attempt print (`out`, `err`)."""
    return batch / f"{job_id}_run{index}_log.{stream}"
