"""The progress of long work: a bar with a rate on a terminal, plain lines elsewhere, nothing for short work."""

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
"""Of a bar on a terminal."""

_PLAIN_S: Final = 5.0
"""Between two lines in a log, and before the first."""

_BAR: Final = 24


class Progress:
    """Shows how many things are done, how many a second, and how long the rest takes; removes the bar at the end.

    If the stream is closed, the work goes on.

    Args:
        stream: shows it.
        clock: seconds that only grow.
    """

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._bar = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._next_s: float | None = None

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown and self._bar:
            self._write(CLEAR_LINE)
        self._shown = False

    def through(self, items: Iterable[_Item], noun: str, size: Callable[[_Item], int] | None = None) -> Iterator[_Item]:
        """As `counted`."""
        total = None
        if isinstance(items, Sized):
            total = sum(map(size, items)) if size else len(items)
        began_s, done = self._clock(), 0
        if self._next_s is None:
            self._next_s = began_s + (_FIRST_S if self._bar else _PLAIN_S)
        try:
            for item in items:
                yield item
                done += size(item) if size else 1
                now_s = self._clock()
                if now_s >= max(self._next_s, began_s + _EVERY_S) and done != total:
                    self._next_s = now_s + (_EVERY_S if self._bar else _PLAIN_S)
                    self._shown = True
                    self._write(self._text(noun, done, total, now_s - began_s))
        finally:
            self.clear()

    def _text(self, noun: str, done: int, total: int | None, took_s: float) -> str:
        text = progress_text(noun, done, total, took_s)
        if not self._bar:
            return f"{text}\n"
        filled = _BAR * done // total if total else 0
        bar = f"[{'#' * filled}{' ' * (_BAR - filled)}] " if total else ""
        return f"{CLEAR_LINE}{shorten(bar + text, (page_for(self._stream).width or 80) - 1)}"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # closed at the other end, or at this one
            self._next_s, self._shown = math.inf, False


@contextmanager
def progress_shown(*, quiet: bool) -> Iterator[None]:
    """Show on stderr the progress of the work inside, see `counted`.

    Args:
        quiet: show nothing: the output is for a program, or stands on the same terminal.
    """
    progress = Progress(sys.stderr)
    try:
        with shown_by(None if quiet else progress):
            yield
    finally:
        progress.clear()


def progress_text(noun: str, done: int, total: int | None, took_s: float) -> str:
    """`412 of 1,000 runs, 95/s, 6 s left`; without a total `1,200,000 rows, 240k/s`."""
    rate = f"{short_number(done / took_s)}/s"
    if total is None:
        return f"{done:,} {noun}, {rate}"
    return f"{done:,} of {total:,} {noun}, {rate}, {duration(took_s / done * (total - done))} left"
