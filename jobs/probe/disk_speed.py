"""How fast a folder's disk writes and reads: one file of limited size, past the page cache where that is possible."""

from __future__ import annotations

import mmap
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...db.file_systems import file_system
from .node_report import Disk

GB: Final = 1e9
BLOCK: Final = 8 << 20
THREADS: Final = 4
"""Blocks in flight: one alone does not show what a disk can do."""
LEAST_FREE: Final = 10
"""The file is at most one part in so many of what is free."""


def measure(folder: Path, size: int, most_s: float) -> Disk:
    """Writes and reads a file, which is gone afterwards.

    Args:
        folder: exists.
        size: of the file, in bytes.
        most_s: no further block is begun after so many seconds of writing, nor of reading.

    Raises:
        OSError: it cannot be written or read.
    """
    free = shutil.disk_usage(folder).free
    blocks = min(size, free // LEAST_FREE) // BLOCK
    if not blocks:
        raise OSError(f"{free / GB:.2f} GB are free, too little to try how fast it is")
    path = folder / f".speed-{uuid.uuid4().hex[:12]}"
    try:
        with _opened(path) as (descriptor, direct):
            written, write_s = _all(_writer(descriptor), [range(n, blocks, THREADS) for n in range(THREADS)], most_s)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            read, read_s = _all(_reader(descriptor), written, most_s)
    finally:
        path.unlink(missing_ok=True)
    speeds = (_bytes(written) / GB / write_s, _bytes(read) / GB / read_s)
    return Disk(str(folder), file_system(folder), free / GB, *speeds, direct)


_Part = Sequence[int]
"""Numbers of the blocks that one thread moves."""
_Move = Callable[[_Part, float], _Part]
"""Moves the blocks of one thread until a time of the monotonic clock; returns those that it moved."""


def _all(move: _Move, parts: Sequence[_Part], most_s: float) -> tuple[list[_Part], float]:
    """What was moved, and the seconds that it took."""
    begun_s = time.monotonic()
    with ThreadPoolExecutor(THREADS) as threads:
        moved = list(threads.map(move, parts, [begun_s + most_s] * len(parts)))
    return moved, max(time.monotonic() - begun_s, 1e-6)


def _writer(descriptor: int) -> _Move:
    def write(part: _Part, until_s: float) -> _Part:
        with mmap.mmap(-1, BLOCK) as block:  # aligned to a page, as O_DIRECT demands
            block.write(os.urandom(1 << 20) * (BLOCK >> 20))
            done = [number for number in _before(part, until_s) if os.pwritev(descriptor, [block], number * BLOCK)]
        os.fdatasync(descriptor)
        return done

    return write


def _reader(descriptor: int) -> _Move:
    def read(part: _Part, until_s: float) -> _Part:
        with mmap.mmap(-1, BLOCK) as block:
            return [number for number in _before(part, until_s) if os.preadv(descriptor, [block], number * BLOCK)]

    return read


def _before(part: _Part, until_s: float) -> Iterator[int]:
    """The first one always: a disk that is slower than that is worth a figure too."""
    for index, number in enumerate(part):
        if index and time.monotonic() > until_s:
            return
        yield number


def _bytes(parts: Sequence[_Part]) -> int:
    return sum(len(part) for part in parts) * BLOCK


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, bool]]:
    """A new file, and whether it is read and written past the page cache, which some file systems refuse."""
    flags, direct = os.O_RDWR | os.O_CREAT, True
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:
        descriptor, direct = os.open(path, flags, 0o600), False
    try:
        yield descriptor, direct
    finally:
        os.close(descriptor)
