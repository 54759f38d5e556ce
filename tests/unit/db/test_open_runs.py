"""Which runs a pass looks at, as both databases find them."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db import bulk, open_runs, queries
from dscampaign.db.records import NewRun
from dscampaign.db.states import AttemptState, RunState
from dscampaign.tests.support.worlds import World

QUEUED = {"state": AttemptState.QUEUED, "job_id": "7_0", "array_index": 0}
ENDED = {"state": AttemptState.COMPLETED, "failure_class": "completed", "last_step": 3}


def found(world: World, *, cancelled: bool = False) -> tuple[int, int]:
    """How many runs are to be read, and how many only wait."""
    with world.store.read() as conn:
        ids, waiting = open_runs.open_runs(conn, world.campaign_id, cancelled=cancelled)
    return len(ids), len(waiting)


def attempt_id(world: World) -> int:
    with world.store.read() as conn:
        return queries.attempts(conn, world.campaign_id)[0].id


def become(world: World, run: dict[str, Any], attempt: dict[str, Any]) -> None:
    attempt_of = attempt_id(world)
    with world.store.write() as conn:
        present = {"config_hash": queries.run_by_id(conn, world.run_id).config_hash}
        assert queries.update_run(conn, world.run_id, **run)
        assert queries.update_attempt(conn, attempt_of, **{**present, **attempt})


def test_a_first_attempt_that_waits_in_the_queue_is_read_as_few_columns(world: World) -> None:
    become(world, {"state": RunState.QUEUED, "reason": "why"}, QUEUED)
    with world.store.read() as conn:
        ids, [one] = open_runs.open_runs(conn, world.campaign_id, cancelled=False)
    assert ids == []
    assert (one.run_id, one.attempt_id, one.reason, one.job_id) == (world.run_id, attempt_id(world), "why", "7_0")


@pytest.mark.parametrize(
    ("run", "attempt"),
    [
        ({"desired": "cancel"}, {}),
        ({"not_before_s": 1.0}, {}),
        ({"state": RunState.PENDING}, {}),
        ({}, {"state": AttemptState.RUNNING}),
        ({}, {"state": AttemptState.INTENT, "job_id": None}),
        ({}, {"evidence": {"hang": "why"}}),
        ({}, {"phase": "train"}),
        ({}, {"node_list": "n1"}),
    ],
)
def test_a_queued_attempt_with_more_than_its_first_columns_is_read_whole(
    world: World, run: dict[str, Any], attempt: dict[str, Any]
) -> None:
    become(world, {"state": RunState.QUEUED, **run}, {**QUEUED, **attempt})
    assert found(world) == (1, 0)


def test_all_that_waits_is_read_when_the_campaign_is_cancelled(world: World) -> None:
    become(world, {"state": RunState.QUEUED}, QUEUED)
    assert found(world, cancelled=True) == (1, 0)


@pytest.mark.parametrize(
    ("run", "attempt", "read"),
    [
        ({}, {}, 0),
        ({"retry_epoch": 1}, {}, 1),
        ({"config_hash": "another"}, {"config_hash": "one"}, 1),
        ({}, {"state": AttemptState.RUNNING}, 1),
        ({"state": RunState.FAILED}, {"state": AttemptState.FAILED, "failure_class": "crash"}, 1),
        ({"state": RunState.CANCELLED, "desired": "cancel"}, {"failure_class": "cancelled"}, 0),
        ({"state": RunState.CANCELLED, "desired": "cancel"}, {}, 1),
        ({"state": RunState.CANCELLED}, {"failure_class": "cancelled"}, 1),
    ],
)
def test_done_runs_are_not_read(world: World, run: dict[str, Any], attempt: dict[str, Any], read: int) -> None:
    become(world, {"state": RunState.COMPLETED, "reason": "", "target_step": 3, **run}, {**ENDED, **attempt})
    assert found(world) == (read, 0)


def test_runs_without_an_attempt_are_begun_in_the_order_of_their_repeats(world: World) -> None:
    new = [
        NewRun(name, {}, {}, name, ordinal, repeat)
        for ordinal, (name, repeat) in enumerate([("a", 1), ("b", 0), ("c", 1)])
    ]
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, new)
        names = {run.id: run.name for run in queries.runs(conn, world.campaign_id)}
        first, more = open_runs.fresh_runs(conn, world.campaign_id, 2)
        whole, none = open_runs.fresh_runs(conn, world.campaign_id, 3)
    assert ([names[run_id] for run_id in first], more) == (["b", "a"], True)
    assert ([names[run_id] for run_id in whole], none) == (["b", "a", "c"], False)


def test_queries_about_runs_that_are_not_read(world: World) -> None:
    nodes = [{"host": "n1"}, {"host": "n2"}]
    become(world, {"state": RunState.COMPLETED, "reason": ""}, {**ENDED, "evidence": {"nodes": nodes}})
    with world.store.read() as conn:
        assert open_runs.trained_hosts(conn, world.campaign_id) == {"n1", "n2"}
        assert open_runs.trained_interpreters(conn, world.campaign_id) == {""}
        assert open_runs.failed_attempts(conn, world.campaign_id, ["gpu"], ()) == []
    become(world, {"generation": 2}, {"failure_class": "gpu"})
    with world.store.read() as conn:
        [failed] = open_runs.failed_attempts(conn, world.campaign_id, ["gpu"], ())
        assert failed.id == attempt_id(world)
        assert open_runs.failed_attempts(conn, world.campaign_id, ["gpu"], {world.run_id}) == []


@pytest.mark.parametrize("told", [{"seen_s": 50.0}, {}])
def test_spools_of_long_settled_runs_are_read_once(world: World, told: dict[str, Any]) -> None:
    become(world, {"state": RunState.COMPLETED, "generation": 5}, {**ENDED, "evidence": told, "ended_s": 50.0})
    with world.store.read() as conn:
        now_s = world.store.now(conn)
        asked = [(49.0, True), (49.0, False), (51.0, True), (now_s + 9, False)]
        found = [len(open_runs.unread_spools(conn, world.campaign_id, late_s, ended=e)) for late_s, e in asked]
    assert found == [1, 1, 0, 0]
