"""Passes of the reconciler with somebody looking on: lines in a log, a table that redraws itself on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

from ...db.errors import StaleLease, StoreUnreachable
from ...db.records import CampaignRow
from ...db.store import Store
from ..campaign.status import CampaignStatus, read_status, status_document
from ..errors import UserError
from ..reconcile.lease import LeaseHeld
from ..reconcile.loop import SLURM_POLL_S, Pass, Reconciler
from .common import echo, echo_err, echo_json, page_for
from .interrupts import terminated_as_interrupted
from .pages.actions import action_lines, trouble_lines
from .pages.status import headline, status_page, steps_line

STATUS_POLL_S = 2.0
STEPS_EVERY_S = 60.0
"""How often a log without a terminal is told how far training is while nothing else happens."""


class Display(Protocol):
    """Where a watch shows what it sees."""

    def say(self, lines: Sequence[str]) -> None:
        """Lines that stay."""

    def update(self, status: CampaignStatus) -> None:
        """Where the campaign stands now."""


def run_one_pass(store: Store, campaign: CampaignRow) -> bool:
    """One pass, told on stderr; True if something could not be asked or done for now.

    Another reconciler at work is no trouble: it does what this one would have done.
    """
    reconciler = Reconciler(store, campaign)
    try:
        seen: Pass | Exception = reconciler.run_pass()
    except (LeaseHeld, StaleLease) as held:
        seen = held
    finally:
        reconciler.close()
    for line in _lines(seen, read_status(store, campaign)):
        echo_err(line)
    return isinstance(seen, Pass) and bool(seen.troubles)


def watch_passes(store: Store, campaign: CampaignRow, interval_s: float | None = None) -> None:
    """Passes until everything is settled, whoever settles it.

    Raises:
        UserError: The interval is too short.
        KeyboardInterrupt: Stopped by the user or a signal; the jobs go on, and that was said.
    """
    least_s = SLURM_POLL_S if campaign.executor == "slurm" else 0.1
    if interval_s is not None and interval_s < least_s:
        raise UserError(f"--interval {interval_s:g} is too short", f"at least {least_s:g} s: others use Slurm too")
    reconciler = Reconciler(store, campaign)
    said = ""  # what keeps this from working is said once, not at every look
    with display(sys.stderr) as shown, terminated_as_interrupted():
        try:
            for seen in reconciler.watch(poll_s=interval_s):
                status = None if isinstance(seen, StoreUnreachable) else _status_if_any(store, campaign)
                if status is None:
                    shown.say([str(seen)] if isinstance(seen, Exception) else [])
                    continue
                shown.say(_lines(seen, status) if str(seen) != said else [])
                said = "" if isinstance(seen, Pass) else str(seen)
                shown.update(status)
                if status.settled and not isinstance(seen, Pass):
                    return
        except KeyboardInterrupt:
            shown.say(["", f"stopped looking; the jobs go on. `campaign reconcile {campaign.name} --watch` resumes"])
            raise
        finally:
            reconciler.close()


def _status_if_any(store: Store, campaign: CampaignRow) -> CampaignStatus | None:
    """None while the store is away: the next pass says so."""
    try:
        return read_status(store, campaign)
    except StoreUnreachable:
        return None


def watch_status(store: Store, campaign: CampaignRow, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Shows the status again and again until everything is settled; only reads."""
    with display(sys.stderr) as shown:
        while not (status := read_status(store, campaign)).settled:
            shown.update(status)
            sleep(STATUS_POLL_S)


def print_end(store: Store, campaign: CampaignRow, as_json: bool, *, brief: bool = False) -> None:
    """Where the campaign stands, as data; brief: one line where no run is in trouble."""
    if as_json:
        echo_json(status_document(store, campaign))
        return
    status, page = read_status(store, campaign), page_for(sys.stdout)
    troubled = any(run.state in ("failed", "held") for run in status.runs)
    echo(headline(status, page) if brief and not troubled else status_page(status, page))


@contextmanager
def display(stream: IO[str]) -> Iterator[Display]:
    """A live table where the stream is a terminal, else lines."""
    page = page_for(stream)
    if page.width is None or os.environ.get("TERM") == "dumb":
        yield _Lines(stream)
        return
    from rich.console import Console  # imported here: only a terminal pays for it
    from rich.live import Live

    console = Console(file=stream, force_terminal=True, no_color=not page.colour, highlight=False, soft_wrap=False)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        try:
            yield _LiveTable(live, stream)
        except KeyboardInterrupt:
            live.transient = False  # who stops looking keeps what there was to see
            raise


class _Lines:
    """For a file, a pipe or a dumb terminal: every line with its time, the counts when they change, steps at times."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._page, self._clock = stream, page_for(stream), clock
        self._counts, self._steps, self._said_s = "", "", clock()

    def say(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._stream.write(f"{time.strftime('%H:%M:%S')} {line}\n" if line else "\n")
        self._stream.flush()

    def update(self, status: CampaignStatus) -> None:
        counts, steps = headline(status, self._page), steps_line(status)
        late = steps != self._steps and self._clock() - self._said_s >= STEPS_EVERY_S
        if counts != self._counts or late:
            self._counts, self._steps, self._said_s = counts, steps, self._clock()
            self.say([f"{counts} · {steps}" if steps else counts])


class _LiveTable:
    """For a terminal: lines scroll by above a table that is redrawn in place."""

    def __init__(self, live: Any, stream: IO[str]) -> None:
        self._live, self._stream = live, stream

    def say(self, lines: Sequence[str]) -> None:
        from rich.text import Text

        for line in lines:
            self._live.console.print(Text.from_ansi(f"{time.strftime('%H:%M:%S')} {line}" if line else ""))

    def update(self, status: CampaignStatus) -> None:
        from rich.text import Text

        page = page_for(self._stream)  # asked anew: the window may have been resized
        text = Text.from_ansi(status_page(status, page, self._live.console.size.height))
        text.no_wrap = True
        self._live.update(text, refresh=True)


def _lines(seen: Pass | Exception, status: CampaignStatus) -> list[str]:
    if isinstance(seen, Pass):
        after = {run.run_id: run for run in status.runs}
        return [*action_lines(seen, after, page_for(sys.stderr)), *trouble_lines(seen)]
    if isinstance(seen, LeaseHeld):
        return [f"{seen.message}; {seen.hint}"]
    return [str(seen)]
