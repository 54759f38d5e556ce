"""The files of a job array: payloads, tasks that no job may begin any more, and records of jobs of several attempts.

The first line of the payloads has the fields that all tasks share; each further line has a task's own.

A task is closed if its attempt is over without having begun, so that a job that Slurm launches late, or twice, leaves
it alone. The claim protects an attempt that has begun. The file is there from the start: NFS may show a file as absent
for a while to a node that has looked for it before, but asks the server again when an existing file is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import open_private

from .documents import Document, Number, Time, Whole
from .layout import closed_file
from .payload import Payload

EARLY_S = 60.0  # how early Slurm may send the signal to stop, by sbatch's manual


def write_payloads(path: Path, payloads: Sequence[Payload]) -> None:
    """Write the payloads of tasks 0, 1, ...; complete or not at all."""
    wholes = [vars(payload) for payload in payloads]
    first = wholes[0]
    own_names = [name for name, value in first.items() if any(whole[name] != value for whole in wholes)]
    common = {name: value for name, value in first.items() if name not in own_names}
    own = ({name: whole[name] for name in own_names} for whole in wholes)
    write_atomically(path, "".join(f"{json.dumps(line)}\n" for line in (common, *own)), closed=Payload.closed)


def read_payload(file: FileIO, path: Path, index: int) -> Payload:
    """Return the payload of task ``index`` from the open file at ``path``. Raises OSError, ValueError."""
    with BufferedReader(file) as lines:
        common = _object(lines.readline(), path)
        return Payload.of({**common, **_object(next(islice(lines, index, None), b""), path)}, path)


def read_array(file: FileIO, path: Path) -> Iterator[dict[str, Any]]:
    """Yield the payload of each task, in order, as written by any version. Raises as `read_payload`."""
    with BufferedReader(file) as lines:
        common = _object(lines.readline(), path)
        yield from ({**common, **_object(line, path)} for line in lines)


def _object(line: bytes, path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(line)}
    except (TypeError, ValueError, RecursionError):
        raise ValueError(f"{path}: not what was submitted") from None


def make_closed(batch: Path) -> None:
    """Make the file of a new array, with no task closed; the caller syncs the folder."""
    os.close(open_private(closed_file(batch), os.O_WRONLY | os.O_CREAT))


def close_tasks(batch: Path, tasks: Iterable[int]) -> None:
    """Close tasks of an array; once this returns, they stay closed. Raises OSError."""
    # A full disk may have cut what was written before: without the first newline, `1` and `7` would close task 17.
    lines = "".join(f"\n{task}" for task in sorted(tasks)) + "\n"
    with open(closed_file(batch), "ab", opener=open_private) as file:
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())


def closed_tasks(batch: Path) -> set[int]:
    """Return the tasks that were closed. Raises OSError if that is unknown."""
    try:
        return {int(line) for line in closed_file(batch).read_bytes().split() if line.isdigit()}
    except FileNotFoundError:  # somebody has removed it; the claims still protect attempts
        return set()


def is_closed(batch: Path, task: int) -> bool:
    """Return whether a task was closed. Raises OSError if that is unknown."""
    return task in closed_tasks(batch)


@dataclass(frozen=True)
class StepEnd:
    """The end of an attempt's step, in a job that went on.

    `closed`: the attempt was to end. `begun`: attempts that the job had begun by then.
    """

    exit: Number
    ended_s: Time
    out_of_memory: bool = False
    closed: bool = False
    begun: Whole | None = None


@dataclass(frozen=True)
class JobRecord(Document):
    """The attempts whose agents a job started, how they ended, and attempts that it will not begin, for a `reason`."""

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
