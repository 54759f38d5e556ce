"""The output of the first rank as a source of metrics, with the times at which its lines were printed."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dscampaign.files.regular_files import open_regular

from .forms import Form
from .lines import Line
from .sources import MetricSource

LINE_LIMIT: Final = 1000
SEEN_WITHIN_S: Final = 0.25
"""Lines seen later than this after they may have been printed have no time."""

_ESCAPE: Final = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_LINE_END: Final = re.compile(rb"[\r\n]+")


class Printed(MetricSource):
    """The output of the first rank.

    Its file only shows the growth between two looks at its size. Of the lines that came between two looks, only the
    last has a known time: a script with a buffer prints many at once, and has just made the last.
    """

    kind = "printed"
    within_s = SEEN_WITHIN_S

    def __init__(self, logs: Path, form: Form) -> None:
        self._logs, self._form = logs, form
        self._path: Path | None = None
        self._offset, self._rest = 0, b""
        self._sizes: list[tuple[int, float]] = []
        self._noted_s = -math.inf

    def note(self) -> None:
        """Note the length of the output."""
        if self._path is None:
            return
        size, now_s = self._path.stat().st_size, time.monotonic()
        if size > (self._sizes[-1][0] if self._sizes else self._offset):
            in_time = now_s - self._noted_s <= SEEN_WITHIN_S
            self._sizes.append((size, time.time() if in_time else math.nan))
        self._noted_s = now_s

    def read(self, max_bytes: int, *, last: bool = False) -> tuple[list[Line], bool]:
        """Return the metrics of the next lines; a progress bar's turns count as lines."""
        self._path = self._path or next(iter(sorted(self._logs.glob("*_rank0.log"))), None)
        if self._path is None:
            return [], False
        self.note()
        chunk = b""
        if self._sizes:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                chunk = file.read(min(max_bytes, self._sizes[-1][0] - self._offset)) or b""
        lines, more = self._timed(chunk), len(chunk) == max_bytes
        self.description = self._form.description
        return self._form.settled(lines, over=last and not more), more

    def remarks(self) -> list[str]:
        """Return the form's remarks."""
        return self._form.remarks()

    def _timed(self, chunk: bytes) -> list[Line]:
        ends = [self._offset + end.end() for end in _LINE_END.finditer(chunk)]
        *texts, rest = _LINE_END.split(self._rest + chunk)
        self._rest = rest[:LINE_LIMIT]
        self._offset += len(chunk)
        taken = list(self._form.take(_ESCAPE.sub(b"", text[:LINE_LIMIT]).decode(errors="replace") for text in texts))
        newest: dict[int, Line] = {}
        for index, line in taken:
            newest[_look_at(ends[index], self._sizes)] = line
        for look, line in newest.items():
            size, ts_s = self._sizes[look]
            if size <= self._offset and math.isfinite(ts_s):
                line["ts"] = ts_s
        self._sizes = [look for look in self._sizes if look[0] > self._offset]
        return [line for _, line in taken]


def _look_at(end: int, sizes: Iterable[tuple[int, float]]) -> int:
    return next(index for index, (size, _) in enumerate(sizes) if size >= end)
