"""Many campaigns of one store, driven by any number of processes: a free process takes the longest waiting campaign.

A process has a campaign's lease for a pass; after it the lease lasts until the next pass is due: Slurm is asked about a
campaign once per interval, and nothing has to be shared out again when a process comes or dies. A watching process also
holds the lease `STANDING`, so that `submit` knows that somebody will take up its campaign.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection

from dscampaign.db import leases, queries
from dscampaign.db.errors import AWAY, SchemaMismatch, StaleLease
from dscampaign.db.records import CampaignRow, Lease
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import Unreachable, UserError

from .lease import LEASE_TTL_S, RENEWED_SHARE, STANDING, LeaseHeld, LeaseHolder, acquire, lease_name, release
from .loop import SLURM_POLL_S, Pass, Reconciler, default_poll_s
from .notify import deliver
from .origin import Origin

LEAST_SLEEP_S = 0.1
CLOCK_STEP_S = 1.0  # a clock that is kept right may go back by less

Driver = Callable[[Store, CampaignRow], Reconciler]


@dataclass(frozen=True)
class Turn:
    """A campaign with work left, and when its next pass is due, by the store's clock."""

    campaign: CampaignRow
    due_s: float


@dataclass(frozen=True)
class Outcome:
    """The result of a pass on a campaign; `seen` is the exception if the pass failed."""

    campaign: CampaignRow
    seen: Pass | Exception


def due_s(lease: Lease | None, now_s: float) -> float:
    """Return when a campaign's next pass is due: when its lease runs out; at once if its holder has died."""
    if lease is None or lease.expires_s > now_s + 2 * LEASE_TTL_S:  # the clock was set back
        return 0.0
    if lease.expires_s > now_s and LeaseHolder.parse(lease.holder).dead:
        return min(now_s, lease.expires_s - LEASE_TTL_S)  # when it was last renewed
    return lease.expires_s


def next_turn(turns: Sequence[Turn], by_s: float) -> Turn | None:
    """Return the campaign due by then that has waited longest."""
    return min((turn for turn in turns if turn.due_s <= by_s), key=lambda turn: turn.due_s, default=None)


class Turns:
    """Passes on all campaigns of a store that are not settled, beside other processes; each error is yielded.

    `interval_s` is between two passes on a campaign; `driver` makes its reconciler.
    """

    def __init__(self, store: Store, interval_s: float | None, driver: Driver) -> None:
        self._store, self._interval_s, self._driver = store, interval_s, driver
        self._reconcilers: dict[tuple[int, float], Reconciler] = {}  # an id may come back
        self._unfinished: set[int] = set()
        self._rests_until_s: dict[int, float] = {}
        self._standing, self._stood_s = LeaseHolder.standing(), -math.inf

    def one_round(self) -> Iterator[Outcome]:
        """Make one pass on each campaign that no other process has, or has looked after since this was called."""
        return self._round(self._read()[0])

    def _round(self, began_s: float) -> Iterator[Outcome]:
        tried = set[int]()
        while turn := next_turn(self._read(tried)[1], began_s):
            tried.add(turn.campaign.id)
            yield Outcome(turn.campaign, self._pass(turn.campaign, then_s=0.0))

    def watch(self, *, sleep: Callable[[float], None] = time.sleep) -> Iterator[Outcome | Exception]:
        """Make passes until every campaign is settled; errors of `AWAY` are raised at the start, and yielded later."""
        has_run, before_s = False, -math.inf
        while True:
            try:
                now_s, turns = self._read()
                if now_s < before_s - CLOCK_STEP_S:  # it was set back: what was put off would wait for as long
                    self._rests_until_s.clear()
                    self.close()
                before_s = now_s
                if not turns and self._is_over():
                    return
                if time.monotonic() - self._stood_s > RENEWED_SHARE * LEASE_TTL_S:
                    with self._store.write() as conn:  # nothing if another process has it
                        acquire(conn, STANDING, self._standing)
                    self._stood_s = time.monotonic()
            except AWAY as exc:
                if not has_run:
                    raise
                yield exc
                sleep(SLURM_POLL_S)
                continue
            has_run = True
            turn = next_turn(turns, now_s)
            if turn is None:
                first_s = min((turn.due_s for turn in turns), default=math.inf) - now_s
                sleep(min(max(first_s, LEAST_SLEEP_S), SLURM_POLL_S))
                continue
            polite_s = SLURM_POLL_S if turn.campaign.executor == "slurm" else 0.0
            then_s = max(self._interval_s or default_poll_s(turn.campaign), polite_s)
            self._rests_until_s[turn.campaign.id] = now_s + then_s  # also if the pass gets no lease to put off
            yield Outcome(turn.campaign, self._pass(turn.campaign, then_s))

    def close(self) -> None:
        """Release all leases, so that others can go on at once."""
        for reconciler in self._reconcilers.values():
            reconciler.close()
        if self._stood_s > -math.inf:
            self._stood_s = -math.inf
            with suppress(*AWAY, SchemaMismatch), self._store.write() as conn:
                release(conn, STANDING, self._standing)

    def _is_over(self) -> bool:
        """Return whether nothing is left, and release `STANDING`: a later `submit` finds it free, or waits for this."""
        with self._store.read() as conn:
            campaigns = queries.list_campaigns(conn)
        if [owed for campaign in campaigns for owed in deliver(self._store, campaign)]:
            return False
        with self._store.write() as conn:
            release(conn, STANDING, self._standing)  # first: it locks the row
            if left := bool(self._left(conn, queries.list_campaigns(conn))):
                acquire(conn, STANDING, self._standing)
        return not left

    @staticmethod
    def _left(conn: Connection, campaigns: Sequence[CampaignRow]) -> set[int]:
        lacking = queries.lacking_variables(conn)
        complete = {row.id for row in campaigns if not Origin.of(row.provenance).missing(os.environ)}
        return queries.unsettled_campaigns(conn) | (lacking & complete)

    def _read(self, without: Collection[int] = ()) -> tuple[float, list[Turn]]:
        with self._store.read() as conn:
            now_s, campaigns = self._store.now(conn), queries.list_campaigns(conn)
            left = self._left(conn, campaigns)
            held = {row.id: leases.read_lease(conn, lease_name(row.id)) for row in campaigns if row.id in left}
        self._unfinished &= {row.id for row in campaigns}
        turns = [
            Turn(row, max(due_s(held.get(row.id), now_s), self._rests_until_s.get(row.id, 0.0)))
            for row in campaigns
            if row.id not in without and (row.id in left or row.id in self._unfinished)
        ]
        return now_s, turns

    def _pass(self, campaign: CampaignRow, then_s: float) -> Pass | Exception:
        """Make a pass, after which nobody has to look at the campaign for so long."""
        key = campaign.id, campaign.created_s
        try:
            reconciler = self._reconcilers.get(key) or self._driver(self._store, campaign)
            self._reconcilers[key] = reconciler
            done = reconciler.run_pass()
        except (LeaseHeld, StaleLease) as held:
            self._unfinished.discard(campaign.id)  # it is another's to finish
            return held
        except SchemaMismatch:
            raise
        except (UserError, *AWAY) as exc:
            failed: Exception = exc
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this campaign's alone
            failed = Unreachable(f"the pass failed: {type(exc).__name__}: {exc}", about="pass")
        else:
            if reconciler.is_over(done):
                self._unfinished.discard(campaign.id)
                del self._reconcilers[key]
            else:
                self._unfinished.add(campaign.id)
                reconciler.close(then_s)
            return done
        if key in self._reconcilers:
            self._reconcilers[key].close(then_s)
        return failed
