"""Checks whether a disk has room, and whether anything can be written at all."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from .private_files import open_private

_GB: Final = 1e9
_PROBE_BYTES: Final = 1 << 20


def require_space(folder: Path, needed_bytes: float, purpose: str) -> None:
    """Raise OSError, ENOSPC with the figures, unless so much is free on a folder's disk."""
    if (free := shutil.disk_usage(folder).free) < needed_bytes:
        figures = f"it needs {needed_bytes / _GB:.2f} GB, {free / _GB:.2f} GB free"
        raise OSError(errno.ENOSPC, f"No space left on device {purpose}: {figures}", str(folder))


def try_writing(folder: Path) -> None:
    """Write a little; raises OSError with the reason why nothing more can be written."""
    path = folder / ".probe.tmp"
    try:
        with open(path, "wb", opener=open_private) as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)
