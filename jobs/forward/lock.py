"""One process at a time."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process is in here with the same file. A file system without locks lets everyone in.

    Args:
        path: made if it is not there; it stays.

    Raises:
        OSError: it cannot be made.
    """
    with path.open("w") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
