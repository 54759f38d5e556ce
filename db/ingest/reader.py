"""Reads on in a file that another process appends lines to. A line that is too long is given up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dscampaign.files.private_files import open_regular


@dataclass(frozen=True)
class Stretch:
    """Bytes of a file."""

    chunk: bytes  # bytes that begin with a line; the last line may lack its end
    skipped: int  # bytes before them, of a line that was given up
    size: int  # of the whole file
    more: bool  # whether there may be more

    @property
    def endless(self) -> bool:
        """Whether it is all one line, too long to be read at once: it has to be given up."""
        return self.more and not self.skipped and b"\n" not in self.chunk


def read_on(path: Path, offset: int, max_bytes: int) -> Stretch | None:
    """Read on from an offset: of a line, or within a line that was given up; None if there is no file.

    The size is current: opening a file makes a network file system ask for it again.
    """
    before = min(offset, 1)  # the byte that tells whether a line begins here
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(offset - before)
            chunk = file.read(max_bytes + before) or b""
    except FileNotFoundError:
        return None
    more = len(chunk) == max_bytes + before
    begins = before
    if before and chunk and not chunk.startswith(b"\n"):
        begins = chunk.find(b"\n") + 1 or len(chunk)
    return Stretch(chunk[begins:], max(begins - before, 0), size, more)


def within_line(path: Path, offset: int, longest: int) -> bool:
    """Return whether an offset lies within a line that was not given up: its beginning is shorter than `longest`."""
    start = max(offset - longest, 0)
    with open_regular(path) as file:
        file.seek(start)
        before = file.read(offset - start) or b""
    return not before.endswith(b"\n") and (b"\n" in before or offset < longest)
