"""Kinds of file systems. Importing this costs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)
"""Kinds with shared memory between processes, as SQLite's write-ahead log needs. Unknown counts as a network."""


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """Return the kind of file system of a path, which need not exist, such as `ext4` or `nfs4`; "" if it is unknown.

    `mountinfo` is the text of /proc/self/mountinfo, read by default.
    """
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    real = path.resolve()
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount = Path(left.split()[4].replace("\\040", " "))
        if real.is_relative_to(mount) and len(mount.parts) >= best:  # the later of two equal mounts hides the first
            best, kind = len(mount.parts), right.split()[0]
    return kind


def on_local_disk(path: Path, mountinfo: str | None = None) -> bool:
    """Return whether a file, which need not exist, lies on a file system known to be local."""
    return file_system(path, mountinfo) in LOCAL
