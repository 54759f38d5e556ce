"""Files on a shared file system: complete or absent, created exactly once, never half read, used by one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from .private_files import open_private, open_regular

MAX_BYTES: Final = 32 << 20  # of a record; no job writes more


def write_atomically(path: Path, text: str, *, closed: bool = False) -> None:
    """Replace ``path`` by a file with this text; a crash leaves the old file or the new file.

    Its folder decides who may read it, unless it is `closed` (mode 0600).
    """
    temporary = _write_temporary(path, text, closed=closed)
    temporary.replace(path)
    sync_dir(path.parent)


def create_exclusively(path: Path, text: str) -> bool:
    """Create ``path`` with ``text`` unless it exists; return True to the caller that created it.

    A hard link is the only creation that is both exclusive and complete on every NFS version: O_EXCL would show an
    empty file to a reader that comes between creation and write.
    """
    temporary = _write_temporary(path, text)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS may repeat a request whose answer was lost, and refuse the repetition: the link is there all the same.
        if temporary.stat().st_nlink != 2:
            return False
    finally:
        temporary.unlink()
    sync_dir(path.parent)
    return True


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in ``path``; None if the file is absent, unreadable or not (yet) an object."""
    with contextlib.suppress(OSError, ValueError):
        return load_json(path)
    return None


def load_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in ``path``, None if there is no file; raises ValueError if it holds something else."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1) or b""
    except FileNotFoundError:
        return None
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 20} MiB")
    try:
        value = json.loads(content.decode(errors="replace"))
    except (ValueError, RecursionError) as exc:
        raise ValueError("not JSON" if content else "empty") from exc
    if isinstance(value, dict):
        return value
    raise ValueError("not a JSON object")


def sync_dir(path: Path) -> None:
    """Make a rename in ``path`` survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_temporary(path: Path, text: str, *, closed: bool = False) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
    descriptor = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, closed=closed)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
    except OSError:  # a full disk
        temporary.unlink(missing_ok=True)
        raise
    return temporary


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in here with the same file; a file system without locks lets everyone in."""
    with open(path, "w", opener=open_private) as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
