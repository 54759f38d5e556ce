"""The progress of a watch: on a terminal a table that redraws itself, elsewhere lines with their time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from dscampaign.orchestrator.campaign.status import CampaignStatus
from dscampaign.orchestrator.formatting import printable

from .output import page_for, terminal_size
from .pages.status import headline, status_page, steps_line
from .pages.text import fold

STEPS_EVERY_S = 60.0
"""How often a log shows the progress of training while nothing else happens."""


@contextmanager
def display(stream: IO[str]) -> Iterator[LineDisplay | _LiveTable]:
    """A live table on a terminal, else lines."""
    page = page_for(stream)
    if page.width is None or os.environ.get("TERM") == "dumb":
        yield LineDisplay(stream)
        return
    table = _LiveTable(stream)
    yield table
    table.clear()  # not after an exception: then the last table stays


class LineDisplay:
    """For a file, a pipe or a dumb terminal: lines with their time, the counts when they change, steps now and then."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._page, self._clock = stream, page_for(stream), clock
        self._counts, self._steps, self._written_s = "", "", clock()

    def say(self, lines: Sequence[str]) -> None:
        """Write each line with its time."""
        self._stream.write(stamped(lines))
        self._stream.flush()

    def update(self, status: CampaignStatus) -> None:
        """Write the counts if they have changed, or after a while the steps."""
        counts, steps = headline(status, self._page), steps_line(status)
        late = steps != self._steps and self._clock() - self._written_s >= STEPS_EVERY_S
        if counts != self._counts or late:
            self._counts, self._steps, self._written_s = counts, steps, self._clock()
            self.say([f"{counts} · {steps}" if steps else counts])


class _LiveTable:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._shown: list[str] = []

    def say(self, lines: Sequence[str]) -> None:
        self._draw(fold(stamped(lines), page_for(self._stream).width), self._shown)

    def update(self, status: CampaignStatus) -> None:
        height = terminal_size(self._stream).lines  # read anew: the window may have been resized
        page = page_for(self._stream)
        lines = fold(status_page(status, page, height - 1), page.width).splitlines()
        self._draw("", lines[: height - 1])

    def clear(self) -> None:
        """Remove the table."""
        self._draw("", [])

    def _draw(self, above: str, table: list[str]) -> None:
        """Replace the table. The terminal cuts its lines, so that each takes one line of the screen."""
        up = f"\x1b[{len(self._shown)}F" if self._shown else ""
        rows = "".join(f"{printable(line, colours=True)}\n" for line in table)
        self._stream.write(f"{up}\x1b[J{above}\x1b[?7l{rows}\x1b[?7h")
        self._stream.flush()
        self._shown = table


def stamped(lines: Sequence[str]) -> str:
    """Each line with the time of day."""
    now = time.strftime("%H:%M:%S")
    return "".join(f"{now} {printable(line, colours=True)}\n" if line else "\n" for line in lines)
