"""The closed tasks of a job array, which no job may begin any more: one file an array.

A task is closed if its attempt is over without having begun, for example cancelled in the queue, so that a job that
Slurm launches late, or twice, leaves it alone. The claim protects an attempt that has begun.

The file is there from the start: NFS may show a file as absent for a while to a node that has looked for it before,
but asks the server again when an existing file is opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dscampaign.files.private_files import open_private

from .layout import closed_file


def make_closed(batch: Path) -> None:
    """Make the file of a new array, with no task closed; the caller syncs the folder."""
    os.close(open_private(closed_file(batch), os.O_WRONLY | os.O_CREAT))


def close_tasks(batch: Path, tasks: Iterable[int]) -> None:
    """Close tasks of an array; once this returns, they stay closed.

    Raises:
        OSError: the shared folder takes no files, or the array's folder is gone, and with it its payloads.
    """
    # A full disk may have cut what was written before: without the first newline, `1` and `7` would close task 17.
    lines = "".join(f"\n{task}" for task in sorted(tasks)) + "\n"
    with open(closed_file(batch), "ab", opener=open_private) as file:
        file.write(lines.encode())
        file.flush()
        os.fsync(file.fileno())


def is_closed(batch: Path, task: int) -> bool:
    """Return whether a task was closed. Raises OSError if that is unknown."""
    try:
        lines = closed_file(batch).read_bytes().split(b"\n")
    except FileNotFoundError:  # an array of an earlier version, of which no task was closed
        return False
    return str(task).encode() in lines
