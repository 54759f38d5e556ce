"""The output of a script: what its lines say, and when they were printed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dscampaign.files.regular_files import open_regular

from .forms import Form
from .lines import Line

LINE_LIMIT: Final = 1000
SEEN_WITHIN_S: Final = 0.25
"""Lines seen later than this after they may have been printed have no time."""

_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_LINE_END: Final = re.compile(rb"[\r\n]+")


class Output:
    """Reads on in the output of the first rank, and knows when it was printed.

    The file only shows what was printed between two looks at its size. Of the lines that came between two, only the
    last is known to be of then: a script with a buffer prints many at once, the last of which has just been made.
    """

    def __init__(self, folder: Path, form: Form) -> None:
        self.form = form
        self._folder = folder
        self._path: Path | None = None
        self._offset, self._rest = 0, b""
        self._sizes: list[tuple[int, float]] = []
        self._noted_s = -math.inf

    def note(self) -> None:
        """Looks how much was printed by now; cheap, to be called several times a second.

        Raises:
            OSError: it cannot be seen.
        """
        if self._path is None:
            return
        size, now_s = self._path.stat().st_size, time.monotonic()
        if size > (self._sizes[-1][0] if self._sizes else self._offset):
            known = now_s - self._noted_s <= SEEN_WITHIN_S
            self._sizes.append((size, time.time() if known else math.nan))
        self._noted_s = now_s

    def read(self, max_bytes: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """What the next lines say, and whether there may be more; a progress bar's turns count as lines.

        Args:
            max_bytes: of the output at once.
            last: whether the script has ended.

        Raises:
            OSError: it cannot be read.
        """
        self._path = self._path or next(iter(sorted(self._folder.glob("*_rank0.log"))), None)
        if self._path is None:
            return [], False
        self.note()
        with open_regular(self._path) as file:
            file.seek(self._offset)
            chunk = file.read(min(max_bytes, self._sizes[-1][0] - self._offset)) if self._sizes else b""
        taken, more = list(self._timed(chunk or b"")), len(chunk or b"") == max_bytes
        return self.form.settled(taken, over=last and not more), more

    def _timed(self, chunk: bytes) -> Iterator[Line]:
        ends = [self._offset + found.end() for found in _LINE_END.finditer(chunk)]
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        self._rest = self._rest[:LINE_LIMIT]
        self._offset += len(chunk)
        at = 0

        def texts() -> Iterator[str]:
            nonlocal at
            for line, end in zip(lines, ends, strict=True):
                while self._sizes[at][0] < end:
                    at += 1
                yield _ESCAPE.sub(b"", line[:LINE_LIMIT]).decode(errors="replace")

        last: dict[int, Line] = {}
        for said in self.form.take(texts()):
            last[at] = said
            yield said
        for look, said in last.items():
            size, ts_s = self._sizes[look]
            if size <= self._offset and math.isfinite(ts_s):
                said["ts"] = ts_s
        self._sizes = [look for look in self._sizes if look[0] > self._offset]
