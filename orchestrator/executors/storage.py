"""Whether the campaign's folder is writable: tested by writing, since no figure shows quotas and stale handles."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

from dscampaign.files import file_systems
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import Unreachable, UserError

_CHOOSE: Final = "choose a folder that you can write to: `--dir`, or `dir` in the spec or campaign.toml"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Trouble(NamedTuple):
    """The reason that a folder cannot be used, and the remedy."""

    why: str
    hint: str
    error: type[UserError] = UserError


def trouble(folder: Path, needed_bytes: int = 0) -> Trouble | None:
    """Return why a folder cannot be written, or lacks space for the next attempt; None if it can."""
    try:
        file_systems.try_writing(folder)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        remedy = (_free_space(), Unreachable) if exc.errno in _FULL else (_CHOOSE, UserError)
        return Trouble(exc.strerror or str(exc), *remedy)
    if free < needed_bytes:
        return Trouble(f"{free / 1e9:.1f} GB free, a checkpoint needs {needed_bytes / 1e9:.1f} GB", _free_space())
    return None


def _free_space() -> str:
    return f"free space there: `{typed('gc')}` deletes files that no result needs"


def require_room(folder: Path) -> None:
    """Raise UserError if a folder cannot be written or made; Unreachable if it is full."""
    existing = next(path for path in (folder, *folder.parents) if os.path.isdir(path))  # noqa: PTH112 - pathlib would raise
    if wrong := trouble(existing):
        raise wrong.error(f"{existing}: {wrong.why}", wrong.hint)


def shared_trouble(error: Exception, folder: Path) -> Unreachable | None:
    """Return the error for a shared folder that cannot be written; None if only one run is affected."""
    return unwritable(error) if isinstance(error, OSError) and trouble(folder) else None


def unwritable(exc: OSError) -> Unreachable:
    """Return the error for a shared folder that cannot be written."""
    if exc.errno in _FULL:
        cause = "its disk has no free space" if exc.errno == errno.ENOSPC else "your quota there is used up"
        return Unreachable(f"the shared folder is full: {cause}", "free space; the next pass continues")
    return Unreachable(f"the shared folder is not writable: {exc}", "the next pass tries again", about="not writable")
