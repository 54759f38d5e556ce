"""The parts of a campaign that a group may read. `campaign share` opens present files; agents keep to it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from dscampaign.files.atomic_files import read_json
from dscampaign.files.private_files import is_opened, open_file

from .documents import decode
from .layout import AttemptPaths

_KEY: Final = "shared"


@dataclass(frozen=True)
class Sharing:
    """Who may read a campaign, as its marker records it: a group's name, or its number; also its checkpoints?"""

    group: str
    checkpoints: bool = False

    @classmethod
    def read(cls, marker: Path) -> Self | None:
        """Return the sharing in a campaign's marker; None if it is not shared."""
        record = (read_json(marker) or {}).get(_KEY)
        with suppress(ValueError):
            return decode(cls, record) if record else None
        return None

    @staticmethod
    def recorded(marker: dict[str, Any], sharing: Sharing | None) -> dict[str, Any]:
        """The content of a marker, with this in it."""
        others = {name: value for name, value in marker.items() if name != _KEY}
        return {**others, _KEY: asdict(sharing)} if sharing else others


def open_to_readers(paths: AttemptPaths) -> None:
    """Open the files that the ranks have made in an attempt that is shared. Raises OSError: the folder is away."""
    if not is_opened(paths.dir):
        return
    folders = filter(Path.is_dir, (paths.logs, paths.ranks))
    for file in [paths.metrics, *(file for folder in folders for file in folder.iterdir())]:
        with suppress(FileNotFoundError):
            info = file.lstat()
            single = stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.geteuid()
            if single and not info.st_mode & stat.S_IRGRP:
                open_file(file)
