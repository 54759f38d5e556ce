"""Sample the memory of an attempt's processes on a node, by its agent, never by the ranks themselves.

A process's part is its proportional set size (``smaps_rollup``): its own pages, and its share of shared pages, so that
the parts may be added up. The kernel walks all of a process's pages for it. So for a large process, or if it cannot be
read, the part is the resident set without shared pages, which is less. Neither includes cached files that no process
maps, nor memory that a driver holds outside of a process's pages.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
INTERVAL_S: Final = 1.0
MOST_OF_A_CORE: Final = 0.02
"""Looking takes longer the more pages there are; then it is done less often."""
WALKED_BYTES: Final = 8_000_000_000
"""A walk over so many pages takes a quarter of a second."""
WAIT_S: Final = 0.5
"""For a look that is under way when the attempt has ended."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PSS: Final = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


class ProcessMemory:
    """Samples a process and its descendants about once a second, and keeps the highest sum.

    It misses peaks between two samples, and a process whose parents have all ended.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> int | None:
        """End it; return the highest sum in bytes, None if nothing could be read."""
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
    """Return the memory of a process and its descendants now, in bytes; None if none of them can be read."""
    sizes = [size for pid in tree(root) if (size := _process_bytes(pid)) is not None]
    return sum(sizes) if sizes else None


def group_pids(group: Path) -> set[int]:
    """Return the processes in a control group."""
    return {int(word) for word in read(group / "cgroup.procs").split() if word.isdigit()}


def tree(root: int) -> Iterator[int]:
    """Yield the ids of a process and its descendants.

    Not by psutil: its `children` gives up if a node hides other users' processes (hidepid), and its `process_iter`
    takes four times as long.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and (stat := read(Path(entry, "stat"))):
            children[int(stat.rsplit(")", 1)[1].split()[1])].append(int(entry.name))
    left = [root]
    while left:
        pid = left.pop()
        yield pid
        left += children[pid]


def _process_bytes(pid: int) -> int | None:
    words = read(PROC / str(pid) / "statm").split()
    own = (int(words[1]) - int(words[2])) * _PAGE if len(words) > 2 else None
    if own is not None and int(words[1]) * _PAGE > WALKED_BYTES:
        return own
    match = _PSS.search(read(PROC / str(pid) / "smaps_rollup"))
    return int(match[1]) * 1024 if match else own


def read(path: Path) -> str:
    """Return the file's text; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
