"""A store that has forgotten what its folder and Slurm know: nothing runs twice, and no step is lost or misplaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.files.atomic_files import create_exclusively, read_json, write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.job_array import is_closed
from dscampaign.orchestrator.reconcile.attempt_files import take_claim
from dscampaign.orchestrator.reconcile.search import Measure
from dscampaign.tests.support.earlier_store import restore, saved
from dscampaign.tests.support.world_on_disk import World, make_world

ONE = {"matrix": {"depth": [1]}}

SEARCH: dict[str, Any] = {
    "matrix": {},
    "command": ["train.py", "{x}"],
    "search": {
        "parameters": {"x": {"uniform": [0, 1]}},
        "trials": 16,
        "parallel": 4,
        "confirm": {"top": 1, "repeats": 2},
    },
}


def anew(world: World) -> World:
    """The same folder and cluster with a store that knows nothing."""
    world.store.close()
    for path in world.folder.glob("campaign.db*"):
        path.unlink()
    made = make_world(world.folder)
    made.cluster = world.cluster
    return made


def fail(world: World) -> None:
    """The job runs three steps and fails; the next attempt waits in the queue."""
    world.run_jobs("FAILED", exit_code=None)
    world.run_pass()


@pytest.mark.parametrize("corrected", [{"train": {"steps": 3, "seed": 7}}, {"env": {"LR": "2"}}])
def test_jobs_of_a_lost_store_record_nothing_under_a_corrected_spec(world: World, corrected: dict[str, Any]) -> None:
    world.record(**ONE, env={"LR": "1"})
    world.run_pass()
    [old] = world.cluster.submitted
    again = anew(world)
    again.record(**ONE, **{"env": {"LR": "1"}, **corrected})
    again.run_pass()
    assert is_closed(old.folder, 0)
    assert [event.message for event in again.events("passed_over")] == [
        f"attempt 1 ({old.token}) is of another experiment: it is not taken over"
    ]
    again.run_jobs()
    again.settle()
    assert again.ran == [("depth-1", 2)]
    assert [(row.generation, row.state) for row in again.attempts("depth-1")] == [(2, "completed")]
    again.store.close()


def test_jobs_of_a_lost_store_go_on_under_the_same_spec(world: World) -> None:
    world.record(**ONE)
    world.run_pass()
    again = anew(world)
    again.record(**ONE)
    done = again.run_pass()
    assert [str(trouble).startswith("the store is older than the folder") for trouble in done.troubles] == [True]
    again.settle()
    assert again.ran == [("depth-1", 1)]
    assert (again.states(), again.steps("depth-1")) == ({"depth-1": "completed"}, [1, 2, 3])
    again.store.close()


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("lost", ["the first attempt", "two attempts", "all since the last pass"])
def test_a_store_that_goes_back_is_brought_up_to_its_folder(world: World, lost: str, same_process: bool) -> None:
    world.record(**ONE, train={"steps": 9}, retry={"backoff_s": 0, "crash": 9})
    reconciler = world.reconciler()
    run_pass: Callable[[], object] = reconciler.run_pass if same_process else world.run_pass
    earlier = saved(world.store)
    run_pass()
    if lost != "the first attempt":
        run_pass()
        earlier = saved(world.store)
    for _ in range(1 if lost == "all since the last pass" else 2):
        world.run_jobs("FAILED", exit_code=None)
        run_pass()
    before, known = len(world.cluster.submitted), world.attempts("depth-1")
    restore(world.store, earlier)
    if not same_process:
        reconciler = world.reconciler()
    while len(world.attempts("depth-1")) < len(known):
        reconciler.run_pass()
        assert len(world.cluster.submitted) == before, "something began before store and folder agreed"
    reconciler.run_pass()
    now = world.attempts("depth-1")
    assert [(row.generation, row.token, row.job_id) for row in now] == [
        (row.generation, row.token, row.job_id) for row in known
    ]
    assert [str(row.state) for row in now] == [str(row.state) for row in known]
    assert [row.last_step for row in now[:-1]] == [3] * (len(known) - 1)
    assert world.events("recalled")
    world.run_jobs()
    reconciler.run_pass()
    assert world.ran == [("depth-1", generation) for generation in range(1, len(known) + 1)]
    assert world.states() == {"depth-1": "completed"}


def measured(sign: int) -> Measure:
    """The loss grows with x, or shrinks."""

    def measure(store: Store, campaign: CampaignRow, names: Collection[str]) -> dict[str, dict[str, float | None]]:
        with store.read() as conn:
            rows = [run for run in queries.runs(conn, campaign.id) if run.name in names]
        return {run.name: {"final_loss": sign * float(run.params["x"])} for run in rows}

    return measure


@pytest.mark.parametrize("passes", [1, 4])
def test_trials_that_the_store_has_forgotten_are_recorded_again_whatever_the_search_would_ask_now(
    world: World, passes: int
) -> None:
    world.measure = measured(1)
    world.record(**SEARCH)
    states = []
    for _ in range(7):
        states.append(saved(world.store))
        world.run_pass()
        world.run_jobs()
    before, known = len(world.cluster.submitted), world.runs()
    tokens = {name: [row.token for row in world.attempts(name)] for name in known}
    restore(world.store, states[-passes])
    world.measure = measured(-1)
    while len(world.runs()) < len(known) or any(not world.attempts(name) for name in known):
        assert str(world.run_pass().troubles[0]).startswith("the store is older than the folder")
        assert len(world.cluster.submitted) == before
    again = world.runs()
    assert {name: again[name].params for name in known} == {name: run.params for name, run in known.items()}
    assert {name: [row.token for row in world.attempts(name)] for name in known} == tokens
    world.settle(12)
    assert [name for name in world.runs() if "confirm" not in name] == [f"trial-{n:04}" for n in range(16)]
    assert sorted(world.ran) == [(name, 1) for name in sorted(world.runs())]


def test_a_recalled_attempt_that_was_taken_back_is_lost_though_its_job_failed(world: World) -> None:
    """Its job found the claim taken, and ran nothing: that is no crash of the script."""
    world.record(**ONE, retry={"backoff_s": 0, "infra": 9, "crash": 0})
    earlier = saved(world.store)
    world.run_pass()
    [row] = world.attempts("depth-1")
    assert take_claim(row)
    [(job, view)] = world.cluster.jobs.items()
    world.cluster.jobs[job] = view._replace(state="FAILED")
    restore(world.store, earlier)
    for _ in range(4):
        world.run_pass()
    first, *later = world.attempts("depth-1")
    assert (first.token, first.failure_class) == (row.token, "lost")
    assert later


def test_a_job_whose_place_is_taken_is_cancelled(world: World) -> None:
    world.record(**ONE)
    world.run_pass()
    files = world.paths.run("depth-1").attempt(1)
    make_below(world.paths.runs, files.dir)
    assert create_exclusively(files.claim, json.dumps({"job_id": "9_0", "token": "c.other"}))
    world.run_pass()
    assert world.cluster.cancelled == ["1_0"]
    world.settle()
    assert world.ran == [("depth-1", 2)]


@pytest.mark.parametrize("left", ["claim", "current"])
def test_no_generation_is_given_twice_though_nothing_but_it_is_left(world: World, left: str) -> None:
    world.record(**ONE)
    world.run_pass()
    files = world.paths.run("depth-1").attempt(5)
    make_below(world.paths.runs, files.dir)
    if left == "claim":
        create_exclusively(files.claim, json.dumps({"job_id": "9_0"}))
    else:
        write_atomically(world.paths.run("depth-1").current, json.dumps({"generation": 6}))
    world.cluster.jobs.clear()
    fail(world)
    world.run_pass()
    assert [row.generation for row in world.attempts("depth-1")] == [1, 6]
    assert read_json(world.paths.run("depth-1").current) == {"generation": 6}
