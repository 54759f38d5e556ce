"""`campaign reconcile --all-campaigns`: passes on every campaign of a store, each line with its campaign."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence

from dscampaign.db import queries
from dscampaign.db.errors import StaleLease
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.documents import status_document
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED, UserError
from dscampaign.orchestrator.reconcile.lease import LEASE_TTL_S, LeaseHeld
from dscampaign.orchestrator.reconcile.loop import Pass
from dscampaign.orchestrator.reconcile.turns import Outcome, Turns

from .display import LineDisplay
from .output import echo, echo_err, echo_json, page_for
from .pages.status import headline
from .watch import (
    Obstacles,
    done_lines,
    in_the_way,
    patiently,
    require_polite,
    status_if_any,
    terminated_as_interrupted,
)


def reconcile_all(store: Store, as_json: bool, interval_s: float | None = None, *, watch: bool = False) -> int:
    """One pass on each campaign that is not settled, or passes until all are; returns the exit code.

    Raises UserError if the interval is too short or too long.
    """
    with store.read() as conn:
        unsettled = queries.unsettled_campaigns(conn)
        campaigns = {row.id: row for row in queries.list_campaigns(conn) if row.id in unsettled}
    require_polite(list(campaigns.values()), interval_s)
    if interval_s is not None and interval_s > LEASE_TTL_S:
        hint = f"at most {LEASE_TTL_S:g} s with --all-campaigns; for fewer passes run it by cron, without --watch"
        raise UserError(f"--interval {interval_s:g} is too long", hint)
    turns = Turns(store, interval_s)
    try:
        with terminated_as_interrupted():
            troubled = _watch(turns, store, campaigns) if watch else _one_round(turns, store)
    except KeyboardInterrupt:
        echo_err(f"stopped; the jobs keep running. `{typed('reconcile', '--all-campaigns', '--watch')}` resumes")
        raise
    finally:
        turns.close()
    return patiently(lambda: _end(store, list(campaigns.values()), as_json, troubled=troubled))


def _one_round(turns: Turns, store: Store) -> bool:
    troubled = False
    for outcome in turns.one_round():
        seen = outcome.seen
        if isinstance(seen, LeaseHeld | StaleLease):
            continue
        for line in (*_done(outcome, store), *in_the_way(seen)):
            echo_err(f"{outcome.campaign.name}: {line}")
        troubled = troubled or not isinstance(seen, Pass) or bool(seen.troubles)
    return troubled


def _watch(turns: Turns, store: Store, campaigns: dict[int, CampaignRow]) -> bool:
    """Add the campaigns that appear meanwhile; return False, as nothing is left to be done at the end."""
    logs: dict[int, _Log] = defaultdict(_Log)
    whole = _Log()
    for outcome in turns.watch():
        if not isinstance(outcome, Outcome):
            whole.obstacle(outcome)
            continue
        campaigns[outcome.campaign.id] = outcome.campaign
        whole.obstacle(None)
        logs[outcome.campaign.id].tell(outcome, store)
    return False


class _Log:
    def __init__(self) -> None:
        self._lines, self._obstacles = LineDisplay(sys.stderr), Obstacles()

    def tell(self, outcome: Outcome, store: Store) -> None:
        """Print the actions of a pass, and the state of the campaign if it has changed."""
        if isinstance(outcome.seen, LeaseHeld | StaleLease):
            return
        said = [*patiently(lambda: _done(outcome, store)), *self._obstacles.news(in_the_way(outcome.seen))]
        self._lines.say([f"{outcome.campaign.name}: {line}" for line in said])
        if status := status_if_any(store, outcome.campaign):
            self._lines.update(status)

    def obstacle(self, error: Exception | None) -> None:
        """Print that the store is away, or back."""
        self._lines.say(self._obstacles.news([] if error is None else in_the_way(error)))


def _done(outcome: Outcome, store: Store) -> Sequence[str]:
    return done_lines(outcome.seen, lambda: read_status(store, outcome.campaign))


def _end(store: Store, campaigns: Sequence[CampaignRow], as_json: bool, *, troubled: bool) -> int:
    with store.read() as conn:
        there = {row.id for row in queries.list_campaigns(conn)}
    left = [campaign for campaign in campaigns if campaign.id in there]
    found = [read_status(store, campaign) for campaign in left]
    if as_json:
        echo_json({"campaigns": [status_document(store, campaign) for campaign in left]})
    else:
        for status in found:
            echo(headline(status, page_for(sys.stdout)))
        if not found:
            echo_err("every campaign is settled")
    if troubled:
        return EXIT_UNREACHABLE
    if not all(status.settled for status in found):
        return EXIT_UNSETTLED
    return EXIT_OK if all(status.all_completed for status in found) else EXIT_FAILED
