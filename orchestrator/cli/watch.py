"""Passes of the reconciler, and watches of a campaign: a table that redraws itself, or lines with their time."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import IO, Self, TypeVar

from dscampaign.db import queries
from dscampaign.db.errors import AWAY, StaleLease
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import CANCELLING, UNSETTLED_RUN
from dscampaign.db.store import Store
from dscampaign.orchestrator.api.passes import (
    Obstacles,
    in_the_way,
    passes,
    reconciler_of,
    status_if_any,
    until_settled,
)
from dscampaign.orchestrator.campaign.documents import status_document
from dscampaign.orchestrator.campaign.selection import Selection
from dscampaign.orchestrator.campaign.status import MOST_WATCHED, CampaignStatus, read_status, with_final_figures
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED, UserError
from dscampaign.orchestrator.formatting import count, printable
from dscampaign.orchestrator.pages.actions import action_lines
from dscampaign.orchestrator.pages.status import headline, status_page
from dscampaign.orchestrator.pages.text import fold
from dscampaign.orchestrator.reconcile.lease import LEASE_TTL_S, LeaseHeld
from dscampaign.orchestrator.reconcile.loop import SLURM_POLL_S, Pass
from dscampaign.orchestrator.reconcile.turns import Outcome, Turns

from .console import echo, echo_err, echo_json, echo_page, page_for, progress_shown, screen_height, terminal_size

T = TypeVar("T")

STATUS_POLL_S = 2.0
REPORT_EVERY_S = 10.0


def run_one_pass(
    store: Store, campaign: CampaignRow, *, quiet: bool = False, changed: bool = True, cancelled: bool = False
) -> tuple[CampaignStatus, bool]:
    """Run passes as `api.passes`, and print their actions on stderr.

    Return the status after them, and whether the last met a problem. Mention another active reconciler only if
    something has `changed` that it applies.
    """
    try:
        with progress_shown(quiet=quiet):
            for outcome, status in passes(store, campaign, cancelled=cancelled):
                obstacles = in_the_way(outcome) if changed or not isinstance(outcome, LeaseHeld) else {}
                for line in (*done_lines(outcome, status), *obstacles.values()):
                    echo_err(line)
                troubled = isinstance(outcome, Pass) and bool(outcome.troubles)
                del outcome
    except KeyboardInterrupt:
        echo_err(interrupted(status_if_any(store, campaign), campaign.name))
        raise
    return status, troubled


def done_lines(outcome: Pass | Exception, status: CampaignStatus) -> Sequence[str]:
    """The actions of a pass, given the status after it."""
    if not isinstance(outcome, Pass) or not outcome.actions:
        return []
    return action_lines(outcome, {run.run_id: run for run in status.runs}, page_for(sys.stderr))


def watch_passes(
    store: Store, campaign: CampaignRow, interval_s: float | None = None, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Run passes until every run is settled, by this reconciler or another; UserError if the interval is too short.

    Stopped by the user or a signal, it prints that the jobs keep running, and raises KeyboardInterrupt.
    """
    require_polite([campaign], interval_s)
    obstacles = Obstacles()
    with Display(sys.stderr) as shown:
        try:
            with closing(until_settled(store, campaign, interval_s, sleep=sleep)) as outcomes:
                for outcome, status in outcomes:
                    news = obstacles.news(in_the_way(outcome))
                    shown.say([*(done_lines(outcome, status) if status else ()), *news])
                    if status:
                        shown.update(status)
        except KeyboardInterrupt:
            if status := status_if_any(store, campaign):
                shown.update(status)  # without this process
            shown.say(["", interrupted(status, campaign.name)])
            raise


def exit_code_of_passes(*statuses: CampaignStatus, troubled: bool) -> int:
    """Return the exit code of passes that have left campaigns so; `troubled` if the last met a problem."""
    if troubled or not all(status.settled for status in statuses):
        return EXIT_UNREACHABLE if troubled else EXIT_UNSETTLED
    return EXIT_OK if all(status.all_completed for status in statuses) else EXIT_FAILED


def require_polite(campaigns: Sequence[CampaignRow], interval_s: float | None) -> None:
    """Raise UserError if the time between two passes is too short."""
    least_s = SLURM_POLL_S if any(campaign.executor == "slurm" for campaign in campaigns) else 0.1
    if interval_s is not None and interval_s < least_s:
        raise UserError(f"--interval {interval_s:g} is too short", f"at least {least_s:g} s: Slurm is shared")


def interrupted(status: CampaignStatus | None, name: str) -> str:
    """The state that an interrupted command leaves, and the command to continue."""
    resume = f"`{typed('reconcile', name, '--watch')}` resumes"
    unsettled = [run for run in status.runs if run.state in UNSETTLED_RUN] if status else []
    if cancelling := sum(run.shown == CANCELLING for run in unsettled):
        return f"interrupted: {count(cancelling, 'run')} to be cancelled; their jobs may still run. {resume}"
    if not any(run.job_id is None for run in unsettled):
        return f"stopped; the jobs keep running. {resume}"
    submitted = sum(run.job_id is not None for run in unsettled)
    return f"interrupted: {submitted:,} of {count(len(unsettled), 'run')} submitted. {resume}"


def patiently(read: Callable[[], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
    """Return the result of `read`, once the store can be read."""
    while True:
        try:
            return read()
        except AWAY:
            sleep(STATUS_POLL_S)


def watch_status(store: Store, campaign: CampaignRow, chosen: Selection) -> None:
    """Refreshes the status until every run is settled; only reads."""
    with Display(sys.stderr) as shown:
        while not (status := read_status(store, campaign)).settled:
            shown.update(with_final_figures(store, status.of(chosen), MOST_WATCHED))
            time.sleep(STATUS_POLL_S)


def write_until_settled(
    store: Store,
    campaign: CampaignRow,
    write: Callable[[CampaignStatus], T],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `write` at once, and again if a run has changed, until every run is settled; return its last result.

    Rest between two looks for longer than they take: login nodes are shared.
    """
    obstacles, before, result = Obstacles(work="reading"), "", None
    while True:
        began_s, status, trouble = time.monotonic(), None, dict[str, str]()
        try:
            status = read_status(store, campaign)
            now = repr(status.runs)  # as text: a loss that is not a number is not equal to itself
            if now != before:
                result, before = write(status), now
        except AWAY as error:
            trouble = in_the_way(error)
        if news := obstacles.news(trouble):
            echo_err(stamped(news).rstrip())
        if status and status.settled and result is not None:
            return result
        sleep(max(REPORT_EVERY_S, 3 * (time.monotonic() - began_s)))


def print_end(status: CampaignStatus, store: Store, as_json: bool, *, brief: bool = False) -> bool:
    """Print the status, `brief` in one line if no run is in trouble; True if it is the page, with the next command."""
    if as_json:
        echo_json(status_document(store, status.campaign))
        return False
    page, status = page_for(sys.stdout), with_final_figures(store, status)
    troubled = bool(status.silent) or any(run.state in ("failed", "held") for run in status.runs)
    whole = troubled or not brief
    echo_page(status_page(status, page, screen_height(sys.stdout)) if whole else headline(status, page))
    return whole


class Display:
    """Progress: on a terminal a table that is redrawn below the lines, else lines, and the counts when they change."""

    def __init__(self, stream: IO[str], *, live: bool | None = None) -> None:
        self._stream, self._shown, self._counts = stream, list[str](), ""
        terminal = page_for(stream).width is not None and os.environ.get("TERM") != "dumb"
        self._live = terminal if live is None else live

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:  # else the last table stays
            self._draw("", [])

    def say(self, lines: Sequence[str]) -> None:
        """Write each line with its time."""
        self._draw(fold(stamped(lines), page_for(self._stream).width), self._shown)

    def update(self, status: CampaignStatus) -> None:
        """Redraw the table, or write the counts if they have changed."""
        page = page_for(self._stream)
        if self._live:
            height = terminal_size(self._stream).lines - 1  # read anew: the window may have been resized
            self._draw("", fold(status_page(status, page, height), page.width).splitlines()[:height])
        elif (counts := headline(status, page)) != self._counts:
            self._counts = counts
            self.say([counts])

    def _draw(self, above: str, table: list[str]) -> None:
        """Replace the table. The terminal cuts its lines, so that each takes one line of the screen."""
        if self._live:
            up = f"\x1b[{len(self._shown)}F" if self._shown else ""
            rows = "".join(f"{printable(line, colours=True)}\n" for line in table)
            above = f"{up}\x1b[J{above}\x1b[?7l{rows}\x1b[?7h"
        self._stream.write(above)
        self._stream.flush()
        self._shown = table


def stamped(lines: Sequence[str]) -> str:
    """Each line with the time of day."""
    now = time.strftime("%H:%M:%S")
    return "".join(f"{now} {printable(line, colours=True)}\n" if line else "\n" for line in lines)


def reconcile_all(store: Store, as_json: bool, interval_s: float | None = None, *, watch: bool = False) -> int:
    """Make a pass on each campaign that is not settled, or passes until all are; return the exit code."""
    with store.read() as conn:
        unsettled = queries.unsettled_campaigns(conn)
        campaigns = {row.id: row for row in queries.list_campaigns(conn) if row.id in unsettled}
    require_polite(list(campaigns.values()), interval_s)
    if interval_s is not None and interval_s > LEASE_TTL_S:
        hint = f"at most {LEASE_TTL_S:g} s with --all-campaigns; for fewer passes run it by cron, without --watch"
        raise UserError(f"--interval {interval_s:g} is too long", hint)
    turns = Turns(store, interval_s, reconciler_of)
    try:
        troubled = _watch(turns, store, campaigns) if watch else _one_round(turns, store)
    except KeyboardInterrupt:
        echo_err(f"stopped; the jobs keep running. `{typed('reconcile', '--all-campaigns', '--watch')}` resumes")
        raise
    finally:
        turns.close()
    return patiently(lambda: _end(store, list(campaigns.values()), as_json, troubled=troubled))


def _one_round(turns: Turns, store: Store) -> bool:
    troubled = False
    for campaign, seen in ((outcome.campaign, outcome.seen) for outcome in turns.one_round()):
        if not isinstance(seen, LeaseHeld | StaleLease):
            obstacles = in_the_way(seen)
            for line in (*done_lines(seen, read_status(store, campaign)), *obstacles.values()):
                echo_err(f"{campaign.name}: {line}")
            troubled = troubled or bool(obstacles)
    return troubled


def _watch(turns: Turns, store: Store, campaigns: dict[int, CampaignRow]) -> bool:
    """Add the campaigns that appear meanwhile; return False, as nothing is left to be done at the end."""
    displays: dict[int, Display] = defaultdict(lambda: Display(sys.stderr, live=False))
    obstacles: dict[int, Obstacles] = defaultdict(Obstacles)
    for outcome in turns.watch():
        if not isinstance(outcome, Outcome):
            displays[0].say(obstacles[0].news(in_the_way(outcome)))  # no campaign has the id 0
            continue
        campaign = campaigns[outcome.campaign.id] = outcome.campaign
        display = displays[campaign.id]
        display.say(obstacles[0].news({}))
        if isinstance(outcome.seen, LeaseHeld | StaleLease):
            continue
        status = patiently(partial(read_status, store, campaign))
        lines = [*done_lines(outcome.seen, status), *obstacles[campaign.id].news(in_the_way(outcome.seen))]
        display.say([f"{campaign.name}: {line}" for line in lines])
        display.update(status)
    return False


def _end(store: Store, campaigns: Sequence[CampaignRow], as_json: bool, *, troubled: bool) -> int:
    with store.read() as conn:
        present = {row.id for row in queries.list_campaigns(conn)}
    left = [campaign for campaign in campaigns if campaign.id in present]
    statuses = [read_status(store, campaign) for campaign in left]
    if as_json:
        echo_json({"campaigns": [status_document(store, campaign) for campaign in left]})
    for status in () if as_json else statuses:
        echo(headline(status, page_for(sys.stdout)))
    if not left and not as_json:
        echo_err("every campaign is settled")
    return exit_code_of_passes(*statuses, troubled=troubled)
