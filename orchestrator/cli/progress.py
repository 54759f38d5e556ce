"""How far long work is: a bar with a rate on a terminal, plain lines elsewhere, nothing where it is soon done."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import IO, Final, Self, TypeVar

from ..formatting import duration, short_number, shorten
from .common import page_for

_Item = TypeVar("_Item")

_FIRST_S: Final = 1.0
_EVERY_S: Final = 0.2
"""Of a bar on a terminal."""

_PLAIN_S: Final = 5.0
"""Between two lines in a log, and before the first."""

_BAR: Final = 24
_CLEAR: Final = "\r\x1b[2K"


class Progress:
    """Tells on stderr how many things are done, how many a second, and how long the rest takes; leaves no bar behind.

    Args:
        noun: what is counted, in the plural.
        quiet: show nothing: the output is for a program, or stands on the same terminal.
        stream: standard error unless given.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        noun: str,
        *,
        quiet: bool = False,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._noun, self._quiet, self._clock = noun, quiet, clock
        self._stream = stream or sys.stderr
        self._bar = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown and self._bar:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def through(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The items one by one; each counts as done when the next is asked for. What has a length has a rest, too."""
        if self._quiet:
            yield from items
            return
        total = len(items) if isinstance(items, Sized) else None
        began_s = self._clock()
        next_s = began_s + (_FIRST_S if self._bar else _PLAIN_S)
        for done, item in enumerate(items, 1):
            yield item
            now_s = self._clock()
            if now_s >= next_s and done != total:
                self._show(done, total, now_s - began_s)
                next_s = now_s + (_EVERY_S if self._bar else _PLAIN_S)

    def _show(self, done: int, total: int | None, took_s: float) -> None:
        text = progress_text(self._noun, done, total, took_s)
        if not self._bar:
            self._stream.write(f"{text}\n")
        else:
            filled = _BAR * done // total if total else 0
            bar = f"[{'#' * filled}{' ' * (_BAR - filled)}] " if total else ""
            self._stream.write(f"{_CLEAR}{shorten(bar + text, (page_for(self._stream).width or 80) - 1)}")
        self._stream.flush()
        self._shown = True


def progress_text(noun: str, done: int, total: int | None, took_s: float) -> str:
    """`412 of 1,000 runs, 95/s, 6 s left`; without a total `1,200,000 rows, 240k/s`."""
    rate = f"{short_number(done / took_s)}/s"
    if total is None:
        return f"{done:,} {noun}, {rate}"
    return f"{done:,} of {total:,} {noun}, {rate}, {duration(took_s / done * (total - done))} left"
