"""Paths as users write them. Pure, but for the list of users."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(text: str) -> Path:
    """The path, with the home folder for `~` and `~NAME`; as it is where nobody has that name."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there
