"""Sources of metrics: the interface, and TensorBoard's event files."""

from __future__ import annotations

import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.payload import Payload

from .event_files import EventFile
from .formats import MAX_STEP, Line, metric_name

CHUNK_BYTES: Final = 256 << 10  # read of a file at a time: the agent has other work
SEARCH_S: Final = 10.0  # between two searches for files
MAX_DEPTH: Final = 5
MAX_ENTRIES: Final = 5000  # of a search: a folder may hold a data set
CLOCKS_DIFFER_S: Final = 60.0  # a file server may be late by this much
_NOT_ENTERED: Final = frozenset({"forward", "ranks", "logs", "site-packages", "__pycache__", "node_modules"})
_EVENTS: Final = ".tfevents."
_MADE_BY: Final = re.compile(r"\.tfevents\.\d+\..+\.(\d+)\.\d+")


class MetricSource(ABC):
    """A source of an attempt's metrics.

    Attributes:
        has_read: it is not empty.
        ended_well: so did the script, so a last line without an end is no fragment.
        within_s: a line with a time may have been seen this much later than it was written.
        description: for people.
        remark: why some of its lines are not read, "" if all are.
    """

    kind = description = remark = ""
    has_read = ended_well = False
    within_s = 0.0

    @abstractmethod
    def read(self, *, last: bool) -> tuple[list[Line], bool]:
        """Return the new lines, and whether there may be more; ``last``: the script has ended. Raises OSError."""


class TensorBoard(MetricSource):
    """Event files of the first rank."""

    kind = "tensorboard"

    def __init__(self, places: Places, pid: Callable[[], int | None], since_s: float) -> None:
        self._places, self._pid, self._since_s = places, pid, since_s
        self._files: dict[Path, EventFile] = {}
        self._searched_s = -math.inf

    def read(self, *, last: bool) -> tuple[list[Line], bool]:
        """Return a line for each step and file."""
        if last or time.monotonic() - self._searched_s >= SEARCH_S:
            self._searched_s = time.monotonic()
            for path in self._places.event_files(self._pid()):
                self.description = self.description or f"TensorBoard's event files in {path.parent}"
                self._files.setdefault(path, EventFile(path))
        lines: list[Line] = []
        more = False
        for path, file in self._files.items():
            scalars, moved = file.read(CHUNK_BYTES)
            more |= moved
            steps: dict[int, Line] = {}
            for scalar in scalars:
                of_samples = "/Samples/" in scalar.tag  # DeepSpeed's
                if scalar.ts_s < self._since_s or scalar.step > MAX_STEP or of_samples:
                    continue
                line = steps.setdefault(scalar.step, {"step": scalar.step, "ts": scalar.ts_s})
                line.setdefault(metric_name(scalar.tag, folder=path.parent.name), scalar.value)
            lines += steps.values()
        return lines, more


class Places:
    """The run's folder, folders that its command or environment names by the run's name, and the working folder.

    Only files in the first two are certainly the run's own; in the working folder all runs may write.
    """

    def __init__(self, payload: Payload, since_s: float) -> None:
        name = re.compile(rf"(?<![A-Za-z0-9]){re.escape(payload.run)}(?![A-Za-z0-9])")
        words = (word.partition("=")[2] or word for word in (*payload.command, *payload.env.values()))
        self._own = [Path(payload.run_dir), *(Path(payload.workdir, word) for word in words if name.search(word))]
        self._workdir = Path(payload.workdir) if payload.workdir else None
        self._campaigns = payload.run_paths.root
        self._since_s = since_s - CLOCKS_DIFFER_S

    def event_files(self, pid: int | None) -> Iterator[Path]:
        """Yield TensorBoard's files; in the working folder only files that process ``pid`` has made."""
        yield from self._find(self._own)
        if self._workdir and pid:
            for path in self._find([self._workdir]):
                maker = _MADE_BY.search(path.name)
                if maker and int(maker[1]) == pid:
                    yield path

    def _find(self, folders: list[Path]) -> Iterator[Path]:
        """Yield files that were written since the attempt began."""
        left = MAX_ENTRIES
        waiting = [(folder, 0) for folder in folders]
        while waiting:
            folder, depth = waiting.pop(0)
            with suppress(OSError), os.scandir(folder) as entries:  # gone meanwhile, or not ours to read
                for entry in entries:
                    left -= 1
                    path = Path(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        hidden = entry.name in _NOT_ENTERED or entry.name.startswith(".")
                        if depth < MAX_DEPTH and not hidden and path != self._campaigns:
                            waiting.append((path, depth + 1))
                    elif _EVENTS in entry.name and entry.stat(follow_symlinks=False).st_mtime >= self._since_s:
                        yield path
                    if not left:
                        return
