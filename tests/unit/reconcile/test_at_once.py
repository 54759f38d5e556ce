"""A user's command and a pass at the same moment, on a database that lets both write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from sqlalchemy import text

from dscampaign.db import bulk
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.diff import SpecDiff, merge
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.campaigns import open_store
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.waiting import wait_until
from dscampaign.tests.support.world_on_disk import World

pytestmark = pytest.mark.postgres

ONE = {"depth": [1]}


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    store = open_store(postgres.new_database())
    made = World(tmp_path, store)
    made.record(matrix=ONE)
    yield made
    store.close()


def waits_for_a_lock(store: Store) -> bool:
    """Whether a transaction of this database does."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with store.read() as conn:
        return bool(conn.execute(text(waiting)).scalar_one())


def test_a_run_is_begun_as_it_was_or_as_it_now_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiment of a run is changed by a submission that has read the run before a pass begins it."""
    others = Thread(target=world.run_pass)

    def meanwhile(*given: Any) -> SpecDiff:
        found = merge(*given)
        others.start()
        wait_until(lambda: not others.is_alive() or waits_for_a_lock(world.store), "the pass")
        return found

    monkeypatch.setattr(campaigns, "merge", meanwhile)
    world.record(matrix=ONE, train={"steps": 5})
    others.join()
    [run] = world.runs().values()
    assert [row.config_hash for row in world.attempts("depth-1")] == []
    world.run_pass()
    assert [row.config_hash for row in world.attempts("depth-1")] == [run.config_hash]


def test_a_run_that_has_just_begun_is_not_changed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submission comes while a pass records what it is about to submit."""
    refused: list[UserError] = []

    def changes() -> None:
        try:
            world.record(matrix=ONE, train={"steps": 5})
        except UserError as exc:
            refused.append(exc)

    others = Thread(target=changes)
    marks = bulk.run_marks

    def meanwhile(*given: Any) -> Any:
        found = marks(*given)
        others.start()
        wait_until(lambda: not others.is_alive() or waits_for_a_lock(world.store), "the submission")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "run_marks", meanwhile)
        world.run_pass()
    others.join()
    [run] = world.runs().values()
    assert [row.config_hash for row in world.attempts("depth-1")] == [run.config_hash]
    assert "is queued, and its experiment has changed" in str(refused[0])
