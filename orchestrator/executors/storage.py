"""Whether the campaign's folder takes files: tried by writing one, since quotas and stale handles show in no figure."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...jobs.shared import retention
from ..errors import Unreachable


def trouble(folder: Path, needed_bytes: int = 0) -> str:
    """What is wrong with a folder; "" if it takes files, and has room for the next checkpoint."""
    try:
        retention.probe(folder)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        return exc.strerror or str(exc)
    if free < needed_bytes:
        return f"{free / 1e9:.1f} GB are free, a checkpoint takes {needed_bytes / 1e9:.1f} GB"
    return ""


def unwritable(exc: OSError) -> Unreachable:
    """The shared folder is in trouble, not the attempt."""
    return Unreachable(f"the shared folder does not take files: {exc}", "the next pass tries again")
