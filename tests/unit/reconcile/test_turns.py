"""Several reconcilers of one store: who takes which campaign, what happens to those of one that died."""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import replace

import pytest
from sqlalchemy import ColumnElement, Connection, Float, literal_column

from dscampaign.db import leases, queries
from dscampaign.db import store as store_module
from dscampaign.db.records import CampaignRow, Lease
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.reconcile import turns as turns_module
from dscampaign.orchestrator.reconcile.lease import LEASE_TTL_S, STANDING, LeaseHolder, lease_name
from dscampaign.orchestrator.reconcile.loop import Pass, Reconciler
from dscampaign.orchestrator.reconcile.turns import Outcome, Turn, Turns, due_s, next_turn
from dscampaign.tests.support.world_on_disk import World

NOBODY = str(LeaseHolder(socket.gethostname(), "4194399", "x"))
"""A holder that has died: the kernel gives no process that number."""

NAMES = ("a", "b", "c", "d", "e", "f")


@pytest.fixture
def world(world: World) -> World:
    for name in NAMES:
        world.record(name=name, matrix={"depth": [1]})
    return world


def lease_of(holder: str, expires_s: float) -> Lease:
    return Lease("reconciler:1", holder, 1, expires_s)


def turns_of(world: World, broken: str = "") -> tuple[Turns, Store]:
    """As another process has them, with a connection of its own."""

    def driver(store: Store, campaign: CampaignRow) -> Reconciler:
        if campaign.name == broken:
            raise ValueError("this one is broken")
        return Reconciler(store, campaign, world.cluster)

    store = Store.open(f"sqlite:///{world.folder}/campaign.db")
    return Turns(store, 0.1, driver), store


def names(outcomes: list[Outcome]) -> list[str]:
    return [outcome.campaign.name for outcome in outcomes]


# -- whose turn it is -------------------------------------------------------------------------------------------


def test_a_pass_is_due_when_the_lease_is_over_or_its_holder_has_died() -> None:
    alive, elsewhere = str(LeaseHolder.me()), str(LeaseHolder("another-host", "4194399", "x"))
    assert due_s(None, 1000.0) == 0.0
    assert due_s(lease_of(alive, 990.0), 1000.0) == 990.0
    assert due_s(lease_of(alive, 1100.0), 1000.0) == 1100.0
    assert due_s(lease_of(elsewhere, 1100.0), 1000.0) == 1100.0  # nobody here can tell that it has died
    assert due_s(lease_of(NOBODY, 1100.0), 1000.0) == 1100.0 - LEASE_TTL_S
    assert due_s(lease_of(elsewhere, 4600.0), 1000.0) == 0.0  # the clock was set back
    assert due_s(lease_of(NOBODY, 990.0), 1000.0) == 990.0  # it let go before it ended


def test_whoever_has_waited_longest_is_next(world: World) -> None:
    with world.store.read() as conn:
        a, b, c, *_ = queries.list_campaigns(conn)
    turns = [Turn(a, 900.0), Turn(b, 800.0), Turn(c, 1001.0)]
    assert next_turn(turns, 1000.0) == turns[1]
    assert next_turn(turns, 850.0) == turns[1]
    assert next_turn(turns, 700.0) is None
    assert next_turn([], 1000.0) is None


# -- one round --------------------------------------------------------------------------------------------------


def test_two_rounds_at_once_share_the_campaigns(world: World) -> None:
    """As two crontabs do that start in the same minute: nothing is looked at twice."""
    (one, first), (two, second) = turns_of(world), turns_of(world)
    rounds, passed = [one.one_round(), two.one_round()], Counter[str]()
    for taken in zip(*rounds, strict=True):
        passed.update(names(list(taken)))
    assert passed == Counter(NAMES)
    first.close()
    second.close()


def test_trouble_with_one_campaign_stops_no_other(world: World) -> None:
    turns, store = turns_of(world, broken="b")
    found = list(turns.one_round())
    assert names(found) == list(NAMES)
    [failed] = [outcome.seen for outcome in found if not isinstance(outcome.seen, Pass)]
    assert isinstance(failed, UserError)
    assert "this one is broken" in failed.message
    store.close()


def test_runs_that_were_held_for_a_variable_go_on_in_the_first_round_that_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with world.store.write() as conn:
        first, *_ = queries.list_campaigns(conn)
        queries.update_campaign(conn, first.id, provenance={**first.provenance, "variables": ["HF_TOKEN"]})
    for has_it, passes, submitted in ((False, True, -1), (False, False, -1), (True, True, 0)):
        if has_it:
            monkeypatch.setenv("HF_TOKEN", "secret")
        turns, store = turns_of(world)  # as a crontab's processes
        assert (NAMES[0] in names(list(turns.one_round()))) is passes
        assert len(world.cluster.submitted) == len(NAMES) + submitted
        store.close()


# -- several watches --------------------------------------------------------------------------------------------


def run_jobs(world: World) -> None:
    """Plays the agents of all campaigns."""
    for name in NAMES:
        replace(world, name=name).run_jobs()


def test_watches_take_turns_until_all_is_settled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "SLURM_POLL_S", 0.0)
    (one, first), (two, second) = turns_of(world), turns_of(world)
    watches = [turns.watch(sleep=lambda _: None) for turns in (one, two)]
    taken = {id(watch): set[str]() for watch in watches}
    while watches:
        for watch in list(watches):
            seen = next(watch, None)
            if seen is None:
                watches.remove(watch)
                continue
            assert isinstance(seen, Outcome)
            assert isinstance(seen.seen, Pass), seen
            taken[id(watch)].add(seen.campaign.name)
            with world.store.read() as conn:
                standing = leases.read_lease(conn, STANDING)
                assert standing
                assert standing.holder == str(LeaseHolder.standing())
                assert standing.expires_s > world.store.now(conn)
        run_jobs(world)
    with world.store.read() as conn:
        assert queries.unsettled_campaigns(conn) == set()
        kept = [STANDING, *(lease_name(row.id) for row in queries.list_campaigns(conn))]
        left = [leases.read_lease(conn, name) for name in kept]
        assert all(lease and lease.expires_s <= world.store.now(conn) for lease in left)  # let go of
    assert len(world.ran) == len(world.cluster.submitted) == len(NAMES)
    assert all(len(names) >= 3 for names in taken.values()), taken  # neither is idle while the other has work
    first.close()
    second.close()


def test_a_clock_set_back_delays_no_campaign(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the host of the database gets its time corrected: what was put off until ten would wait for an hour."""
    ahead_s = [3600.0]

    def now_s(_: Connection) -> ColumnElement[float]:
        return literal_column(f"((julianday('now') - 2440587.5) * 86400.0 + {ahead_s[0]})", Float)

    for module in (store_module, queries):
        monkeypatch.setattr(module, "now_s", now_s)
    turns, _ = turns_of(world)
    slept = Counter[str]()

    def sleep(_: float) -> None:
        slept["times"] += 1
        assert slept["times"] < 10

    monkeypatch.setattr(turns, "_interval_s", 60.0)
    watch = turns.watch(sleep=sleep)
    before = names([outcome for _ in NAMES if isinstance(outcome := next(watch), Outcome)])
    ahead_s[0] = 0.0
    after = names([outcome for _ in NAMES if isinstance(outcome := next(watch), Outcome)])
    assert sorted(before) == sorted(after) == sorted(NAMES)
