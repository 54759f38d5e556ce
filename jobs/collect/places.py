"""The folders of the files that a script writes by itself, and which files are this attempt's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.layout import RunPaths
from dscampaign.jobs.shared.payload import Payload

MAX_DEPTH: Final = 5
MAX_ENTRIES: Final = 5000
"""Of one search: a folder may hold a data set."""

CLOCKS_DIFFER_S: Final = 60.0
"""A file server may be late by this much."""

_NOT_ENTERED: Final = frozenset({"forward", "ranks", "logs", "site-packages", "__pycache__", "node_modules"})
_MADE_BY: Final = re.compile(r"\.tfevents\.\d+\..+\.(\d+)\.\d+")


class Places:
    """The run's folder, folders that its command or environment names by the run's name, and the working folder.

    Only files in the first two are certainly the run's own; in the working folder all runs may write.
    """

    def __init__(self, payload: Payload, since_s: float) -> None:
        self._own = [Path(payload.run_dir), *_named(payload)]
        self._workdir = Path(payload.workdir) if payload.workdir else None
        self._campaigns = RunPaths(Path(payload.run_dir)).root
        self._since_s = since_s - CLOCKS_DIFFER_S

    def event_files(self, pid: int | None) -> Iterator[Path]:
        """Yield TensorBoard's files; in the working folder only those that process ``pid`` has made."""
        yield from self._find(self._own, ".tfevents.")
        if self._workdir and pid:
            for path in self._find([self._workdir], ".tfevents."):
                maker = _MADE_BY.search(path.name)
                if maker and int(maker[1]) == pid:
                    yield path

    def trainer_states(self) -> list[Path]:
        """Return Transformers' records of a training, the newest first."""
        return sorted(self._find(self._own, "trainer_state.json"), key=_modified_s, reverse=True)

    def _find(self, folders: list[Path], part: str) -> Iterator[Path]:
        """Yield files with this part in their name that were written since the attempt began."""
        left = MAX_ENTRIES
        waiting = [(folder, 0) for folder in folders]
        while waiting and left:
            folder, depth = waiting.pop(0)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        left -= 1
                        path = Path(entry.path)
                        if entry.is_dir(follow_symlinks=False):
                            if depth < MAX_DEPTH and self._is_entered(path):
                                waiting.append((path, depth + 1))
                        elif part in entry.name and _modified_s(path) >= self._since_s:
                            yield path
                        if not left:
                            return
            except OSError:  # gone meanwhile, or not ours to read
                continue

    def _is_entered(self, folder: Path) -> bool:
        return folder != self._campaigns and folder.name not in _NOT_ENTERED and not folder.name.startswith(".")


def _named(payload: Payload) -> list[Path]:
    name = re.compile(rf"(?<![A-Za-z0-9]){re.escape(payload.run)}(?![A-Za-z0-9])")
    words = (word.partition("=")[2] or word for word in (*payload.command, *payload.env.values()))
    return [Path(payload.workdir, word) for word in words if name.search(word)]


def _modified_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
