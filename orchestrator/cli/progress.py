"""The progress of long work on a terminal: a line with a rate and the time left, removed at the end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import IO, Final, TypeVar

from dscampaign.orchestrator.formatting import duration, short_number, shorten
from dscampaign.orchestrator.progress import shown_by

from .output import CLEAR_LINE, page_for

_Item = TypeVar("_Item")

_FIRST_S: Final = 1.0
_EVERY_S: Final = 0.2


class Progress:
    """Shows on a terminal how many things are done, how many a second, and how long the rest takes.

    Work that takes less than a second is not shown. If the stream is closed, the work continues.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._shown = stream, clock, False
        on_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._next_s = clock() + _FIRST_S if on_terminal else math.inf

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            self._write(CLEAR_LINE)
        self._shown = False

    def through(self, items: Iterable[_Item], noun: str, size: Callable[[_Item], int] | None = None) -> Iterator[_Item]:
        """As `counted`."""
        total = (sum(map(size, items)) if size else len(items)) if isinstance(items, Sized) else None
        began_s, done = self._clock(), 0
        try:
            for item in items:
                yield item
                done += size(item) if size else 1
                now_s = self._clock()
                if now_s >= max(self._next_s, began_s + _EVERY_S) and done != total:
                    self._next_s, self._shown = now_s + _EVERY_S, True
                    text = progress_text(noun, done, total, now_s - began_s)
                    self._write(f"{CLEAR_LINE}{shorten(text, (page_for(self._stream).width or 80) - 1)}")
        finally:
            self.clear()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed at the other end, or at this end
            self._next_s, self._shown = math.inf, False


@contextmanager
def progress_shown(*, quiet: bool) -> Iterator[None]:
    """Show on stderr the progress of the work inside, unless the output is for a program (`quiet`)."""
    with shown_by(None if quiet else Progress(sys.stderr)):
        yield


def progress_text(noun: str, done: int, total: int | None, took_s: float) -> str:
    """`412 of 1,000 runs, 95/s, 6 s left`; without a total `1,200,000 rows, 240k/s`."""
    rate = f"{short_number(done / took_s)}/s"
    if total is None:
        return f"{done:,} {noun}, {rate}"
    return f"{done:,} of {total:,} {noun}, {rate}, {duration(took_s / done * (total - done))} left"
