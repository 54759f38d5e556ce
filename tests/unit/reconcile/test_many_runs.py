"""A pass looks at few of many runs, and decides what it would if it looked at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import MemoryObservation
from dscampaign.db.states import AttemptState, RunState
from dscampaign.files.private_files import make_below
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.reconcile import stored
from dscampaign.orchestrator.reconcile.actions import Action, Finish, SetRun
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.loop import Pass
from dscampaign.orchestrator.reconcile.observe import observe
from dscampaign.orchestrator.reconcile.stored import read_open, read_store
from dscampaign.tests.support.world_on_disk import World, make_world

DEPTHS = [1, 2, 3, 4, 5]


@pytest.fixture
def world(world: World) -> World:
    world.record(matrix={"depth": DEPTHS})
    return world


def decided(world: World, read: Any = read_open) -> list[Action]:
    """What a pass would do now, by what it reads; `read_store` reads the whole campaign."""
    return decide(observe(read(world.store, world.campaign), world.cluster, world.paths, world.store)[0])


def told(actions: list[Action]) -> list[str]:
    """Without why a run waits in the queue, which is recorded apart, and without when it was looked."""
    waits = (isinstance(a, SetRun) and a.state is a.run.state is RunState.QUEUED for a in actions)
    return [
        repr(replace(a, seen_s=0.0) if isinstance(a, Finish) else a)
        for a, w in zip(actions, waits, strict=True)
        if not w
    ]


def looked_at(world: World) -> list[str]:
    """The runs that a pass looks at."""
    return [view.run.name for view in world.run_pass().snapshot.runs]


STATES = [state for state in RunState if state is not RunState.PENDING]
FAILURES = ["completed", "completed_early", "crash", "gpu", "preempted", "cancelled", "oom", "deterministic", "storage"]

ENDS: list[dict[str, Any]] = [
    {}, {"config_hash": "another"}, {"retry_epoch": 1}, {"last_step": 2, "retry_epoch": 1}, {"last_step": None},
]  # fmt: skip
"""Of attempts, unlike their runs; one that has fewer steps than its run is of an earlier `retry_epoch`."""


@pytest.mark.parametrize("state", STATES)
def test_decisions_equal_those_of_a_full_look(world: World, state: RunState) -> None:
    world.run_pass()
    world.run_jobs()
    world.run_pass()
    attempts = [world.attempts(f"depth-{depth}")[-1] for depth in DEPTHS]
    for kind, wanted, desired in product(FAILURES, ("run", "cancel"), ("active", "cancelled")):
        told_of = {"reason": kind, "host": "n0", "seen_s": 1.0, "nodes": [{"host": "n0"}]}
        ended = AttemptState.COMPLETED if kind.startswith("completed") else AttemptState.FAILED
        with world.store.write() as conn:
            queries.update_campaign(conn, world.campaign.id, desired=desired)
            for row, end in zip(attempts, ENDS, strict=True):
                reason = kind if end or state is RunState.COMPLETED else ""
                queries.update_run(conn, row.run_id, state=state, desired=wanted, reason=reason)
                values = {"config_hash": row.config_hash, "retry_epoch": 0, "last_step": 3, **end}
                queries.update_attempt(conn, row.id, state=ended, failure_class=kind, evidence=told_of, **values)
        assert told(decided(world)) == told(decided(world, read_store)), (kind, wanted, desired)


def test_queued_runs_are_not_read_but_show_their_reason(world: World) -> None:
    world.run_pass()
    assert looked_at(world) == []
    key, view = next(iter(world.cluster.jobs.items()))
    world.cluster.jobs[key] = view._replace(reason="Priority")
    done = world.run_pass()
    assert (done.snapshot.runs, done.snapshot.queue.length, done.settled) == ((), len(DEPTHS), False)
    assert [run.reason for run in world.runs().values()] == [
        "waiting: other jobs come first (Priority)",
        "",
        "",
        "",
        "",
    ]


def begin(world: World) -> None:
    key, view = next(iter(world.cluster.jobs.items()))
    world.cluster.jobs[key] = view._replace(state="RUNNING")


def vanish(world: World) -> None:
    world.cluster.jobs.pop(next(iter(world.cluster.jobs)))


def get_a_rival(world: World) -> None:
    key, view = next(iter(world.cluster.jobs.items()))
    world.cluster.rivals[key] = [view, view._replace(job_id="99_0")]


def become_another_job(world: World) -> None:
    key, view = next(iter(world.cluster.jobs.items()))
    world.cluster.jobs[key] = view._replace(job_id="99_0")


def get_a_folder(world: World) -> None:
    make_below(world.paths.runs, world.paths.run("depth-1").attempt(1).dir)


def be_cancelled(world: World) -> None:
    campaigns.cancel(world.store, world.campaign, ["depth-1"])


@pytest.mark.parametrize(
    "happens",
    [begin, vanish, get_a_rival, become_another_job, get_a_folder, be_cancelled],
    ids=lambda one: one.__name__,
)
def test_queued_runs_are_read_when_something_is_new(world: World, happens: Any) -> None:
    world.run_pass()
    happens(world)
    assert told(decided(world)) == told(decided(world, read_store))
    assert looked_at(world) == ["depth-1"]


def test_queued_runs_are_read_when_memory_was_measured(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.record(matrix={"depth": DEPTHS[:2]}, train={"steps": 3, "global_batch": 8, "micro_batch": 4})
    reconciler = world.reconciler()
    reconciler.run_pass()
    assert reconciler.run_pass().snapshot.queue.length == 2
    first, second = (world.attempts(f"depth-{depth}")[0] for depth in (1, 2))
    key = f"{first.memory_key}|?|?"
    fitted = MemoryObservation(key, first.id, 2, oom=False, peak_reserved_gb=1.0, usable_gb=80.0)
    with world.store.write() as conn:
        queries.observe_memory(conn, fitted)
    assert [len(reconciler.run_pass().snapshot.runs) for _ in range(2)] == [1, 0]
    with world.store.write() as conn:
        queries.observe_memory(conn, replace(fitted, attempt_id=second.id, micro_batch=4, oom=True))
    assert [view.run.name for view in reconciler.run_pass().snapshot.runs] == ["depth-2"]
    assert world.attempts("depth-2")[0].micro_batch == 2
    reconciler.close()
    world.store.close()


def test_new_runs_begin_in_pieces_without_a_pause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "AT_ONCE", 2)
    pauses: list[int] = []
    watched = world.reconciler().watch(sleep=lambda _: pauses.append(len(world.cluster.jobs)))
    done = [next(watched) for _ in range(3)]
    assert [len(one.actions) for one in done if isinstance(one, Pass)] == [2, 2, 1]
    assert pauses == []
    world.run_jobs()
    assert [one.settled for one in watched if isinstance(one, Pass)][-1]
    assert pauses[0] == len(DEPTHS)
    assert world.ran == [(f"depth-{depth}", 1) for depth in DEPTHS]
