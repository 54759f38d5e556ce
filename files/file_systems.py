"""Kinds of file systems, and the room on their disks."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_GB: Final = 1e9
_PROBE_BYTES: Final = 1 << 20


def require_space(folder: Path, needed_bytes: float, purpose: str) -> None:
    """Raise OSError, ENOSPC with the figures, unless so much is free on a folder's disk."""
    if (free := shutil.disk_usage(folder).free) < needed_bytes:
        figures = f"it needs {needed_bytes / _GB:.2f} GB, {free / _GB:.2f} GB free"
        raise OSError(errno.ENOSPC, f"No space left on device {purpose}: {figures}", str(folder))


def try_writing(folder: Path) -> None:
    """Write a little into a file that no name leads to; raises OSError with the reason why no more can be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(os.urandom(_PROBE_BYTES))
        file.flush()
        os.fsync(file.fileno())


LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""Kinds with shared memory between processes, as SQLite's write-ahead log needs. Unknown counts as a network."""


def file_system(path: Path) -> str:
    """Return the kind of file system of a path, which need not exist, such as `ext4` or `nfs4`; "" if it is unknown."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    real = path.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].replace("\\040", " "))
        if real.is_relative_to(mount) and len(mount.parts) >= best:  # the later of two equal mounts hides the first
            best, kind = len(mount.parts), right.split()[0]
    return kind


def on_local_disk(path: Path) -> bool:
    """Return whether a file, which need not exist, lies on a file system known to be local."""
    return file_system(path) in LOCAL
