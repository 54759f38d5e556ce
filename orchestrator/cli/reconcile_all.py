"""`campaign reconcile --all-campaigns`: passes on every campaign of a store, each line with its campaign."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from dscampaign.db import queries
from dscampaign.db.errors import StaleLease
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.documents import status_document
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED, UserError
from dscampaign.orchestrator.reconcile.lease import LEASE_TTL_S, LeaseHeld
from dscampaign.orchestrator.reconcile.turns import Outcome, Turns

from .output import echo, echo_err, echo_json, page_for
from .pages.status import headline
from .watch import (
    LineDisplay,
    Obstacles,
    done_lines,
    in_the_way,
    patiently,
    require_polite,
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
        obstacles = in_the_way(seen)
        for line in (*done_lines(seen, read_status(store, outcome.campaign)), *obstacles.values()):
            echo_err(f"{outcome.campaign.name}: {line}")
        troubled = troubled or bool(obstacles)
    return troubled


def _watch(turns: Turns, store: Store, campaigns: dict[int, CampaignRow]) -> bool:
    """Add the campaigns that appear meanwhile; return False, as nothing is left to be done at the end."""
    displays: dict[int, LineDisplay] = defaultdict(lambda: LineDisplay(sys.stderr))
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
    if troubled:
        return EXIT_UNREACHABLE
    if not all(status.settled for status in statuses):
        return EXIT_UNSETTLED
    return EXIT_OK if all(status.all_completed for status in statuses) else EXIT_FAILED
