"""What an attempt's processes take of a node's memory: sampled by its agent, never by the ranks themselves.

A process's part is its proportional set size (``smaps_rollup``): pages of its own, and of shared ones its share, so
that the parts may be added up. The kernel walks all of a process's pages for it, so of a large one, and where it cannot
be read, it is the resident set without what is shared, which is less. Cached files that no process maps are in neither,
nor is what a driver holds outside of a process's pages.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Final

import psutil

INTERVAL_S: Final = 1.0
MOST_OF_A_CORE: Final = 0.02
"""Looking takes longer the more pages there are; then it is done less often."""
WALKED_BYTES: Final = 8_000_000_000
"""A walk over so many pages takes a quarter of a second."""
WAIT_S: Final = 0.5
"""For a look that is under way when the attempt has ended."""


class ProcessMemory:
    """Looks about once a second at a process and all that descend from it, and keeps the highest sum.

    What rises and falls between two looks is missed, and so is a process whose parents have all ended.

    Args:
        root: id of the process.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> int | None:
        """Ends it; returns the highest sum in bytes, None where nothing could be read."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
        return self._peak

    def _run(self) -> None:
        rest_s = 0.0
        while not self._stop.wait(rest_s):
            begin_s = time.perf_counter()
            if (held := tree_bytes(self._root)) is not None:
                self._peak = max(held, self._peak or 0)
            rest_s = max(INTERVAL_S, (time.perf_counter() - begin_s) / MOST_OF_A_CORE)


def tree_bytes(root: int) -> int | None:
    """Memory of a process and its descendants now, in bytes; None where none of them can be read."""
    known = [size for process in tree(root) if (size := _process_bytes(process)) is not None]
    return sum(known) if known else None


def tree(root: int) -> list[psutil.Process]:
    """A process and all that descend from it; none where it has ended."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _process_bytes(process: psutil.Process) -> int | None:
    try:
        plain = process.memory_info()
        if plain.rss <= WALKED_BYTES:
            with suppress(psutil.AccessDenied):
                return int(process.memory_full_info().pss)
        return int(plain.rss - plain.shared)
    except psutil.Error:  # it has just ended
        return None
