"""Whether the campaign's folder is writable: tested by writing, since no figure shows quotas and stale handles."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from dscampaign.files import disk_space
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import Unreachable, UserError


def trouble(folder: Path, needed_bytes: int = 0) -> str:
    """Return why a folder cannot be written, or lacks space for the next attempt; "" if it can."""
    try:
        disk_space.try_writing(folder)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        return exc.strerror or str(exc)
    if free < needed_bytes:
        return f"{free / 1e9:.1f} GB free, a checkpoint needs {needed_bytes / 1e9:.1f} GB"
    return ""


def what_helps(why: str) -> str:
    """Return the advice for such a trouble of a campaign's folder."""
    if why in (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)):
        return f"free space there: `{typed('gc')}` deletes what no result needs"
    return "choose a folder that you can write to: `--dir`, or `dir` in the spec or campaign.toml"


def require_room(folder: Path) -> None:
    """Raise UserError if a folder cannot be written or made."""
    there = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # noqa: PTH112 - pathlib would raise
    if why := trouble(there):
        raise UserError(f"{there}: {why}", what_helps(why))


def shared_trouble(error: Exception, folder: Path) -> Unreachable | None:
    """Return the error for a shared folder that cannot be written; None if only one run is affected."""
    return unwritable(error) if isinstance(error, OSError) and trouble(folder) else None


def unwritable(exc: OSError) -> Unreachable:
    """Return the error for a shared folder that cannot be written."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "its disk has no free space" if exc.errno == errno.ENOSPC else "your quota there is used up"
        return Unreachable(f"the shared folder is full: {what}", "free space; the next pass goes on by itself")
    return Unreachable(f"the shared folder is not writable: {exc}", "the next pass tries again")
