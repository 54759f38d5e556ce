"""Paths as users write them. Pure, but for the list of users."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_NAME_BYTES: Final = 255
_PATH_BYTES: Final = 3000
"""Of the 4096 bytes that Linux accepts, without the folder in front."""


def expanded(text: str) -> Path:
    """The path, with the home folder for `~` and `~NAME`; unchanged if no user has that name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there


def too_long(text: str) -> bool:
    """Return whether no file can have the path: to ask the system for it would be an error."""
    parts = [part.encode(errors="replace") for part in text.split("/")]
    return max(map(len, parts)) > _NAME_BYTES or sum(len(part) + 1 for part in parts) > _PATH_BYTES


def cache_folder() -> Path:
    """Return the folder for results that can be made again; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")) / "dscampaign"
