"""One writer at a time, for SQLite's write-ahead log.

SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection writes while another one, right after its commit,
moves the log back into the file. BEGIN IMMEDIATE does not cover that moment; a lock held until the commit has
returned does.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import StoreBusy

_POLL_S = 0.002


@contextmanager
def writer_lock(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock beside a database file; the kernel lets go of it when the process dies.

    Args:
        path: The lock file; it is made when missing and never removed.
        timeout_s: How long to wait for another writer.

    Raises:
        StoreBusy: Another writer held it for all that time.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(fd, path, timeout_s)
        yield
    finally:
        os.close(fd)


def _acquire(fd: int, path: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise StoreBusy(f"another process held {path.name} for {timeout_s:g} s") from None
            time.sleep(_POLL_S)
