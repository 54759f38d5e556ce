"""Whether the campaign's folder is writable: tested by writing, since no figure shows quotas and stale handles."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...jobs.shared import retention
from ..errors import Unreachable


def trouble(folder: Path, needed_bytes: int = 0) -> str:
    """What is wrong with a folder; "" if it is writable, and has the space that the next attempt needs."""
    try:
        retention.probe(folder)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        return exc.strerror or str(exc)
    if free < needed_bytes:
        return f"{free / 1e9:.1f} GB are free, a checkpoint takes {needed_bytes / 1e9:.1f} GB"
    return ""


def shared_trouble(error: Exception, folder: Path) -> Unreachable | None:
    """The error for a shared folder in which nothing can be written; None if what failed is the trouble of one run."""
    return unwritable(error) if isinstance(error, OSError) and trouble(folder) else None


def unwritable(exc: OSError) -> Unreachable:
    """The error for a shared folder that cannot be written."""
    return Unreachable(f"the shared folder is not writable: {exc}", "the next pass tries again")
