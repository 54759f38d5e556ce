"""What a pass sees of the store, the shared folder and the executor."""

from __future__ import annotations

import errno
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import StepTimes
from dscampaign.db.states import AttemptState, RunState
from dscampaign.files import file_systems
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.agent.evidence import NodeOutcome
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.reconcile.attempt_files import revoked
from dscampaign.orchestrator.reconcile.observe import RunMetrics, observe
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, RunView, Snapshot
from dscampaign.orchestrator.reconcile.stored import read_store
from dscampaign.tests.support.world_on_disk import World, make_world, queued_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with queued_world(tmp_path) as made:
        yield made


def files_of(world: World) -> AttemptPaths:
    """Those of the attempt, in the folder that its agents make."""
    files = world.paths.run("depth-1").attempt(1)
    make_below(world.paths.runs, files.dir)
    return files


def look(world: World) -> Snapshot:
    return observe(read_store(world.store, world.campaign), world.cluster, world.paths, RunMetrics(world.store))[0]


def run(world: World) -> RunView:
    [view] = look(world).runs
    return view


def attempt(world: World) -> AttemptView:
    latest = run(world).latest
    assert latest is not None
    return latest


def test_a_waiting_attempt_has_a_job_and_nothing_else(world: World) -> None:
    view = attempt(world)
    assert view.job is not None
    assert (view.job.state, view.claimed, view.start, view.outcomes, view.lines) == ("PENDING", False, None, (), ())


def test_a_running_attempt_has_the_records_of_its_agents(world: World) -> None:
    files = files_of(world)
    files.claim.write_text(json.dumps({"job_id": "1_0", "ts": 7.0}))
    start = Start("1_0", "n0", "a", 1, "", 0, 5.0)
    start.write(files.started)
    view = attempt(world)
    assert (view.claimed, view.start, view.start_step) == (True, start, 0)


def test_no_outcome_is_looked_for_before_the_folder_lists_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    files, real, looked = files_of(world), NodeOutcome.load, list[str]()

    def load(path: Path) -> NodeOutcome | None:
        looked.append(path.name)
        return real(path)

    monkeypatch.setattr(NodeOutcome, "load", load)
    assert attempt(world).outcomes == ()
    assert looked == []
    write_atomically(files.outcome(0), "{}")
    assert attempt(world).unreadable
    assert looked == ["outcome-0.json"]


@pytest.mark.parametrize(("text", "claimed"), [("", True), ("{", True), ('{"job_id": "1_0"}', True)])
def test_whoever_holds_the_claim_it_is_taken(world: World, text: str, claimed: bool) -> None:
    files_of(world).claim.write_text(text)
    assert attempt(world).claimed is claimed


def test_the_state_of_a_job_without_the_claim_is_ignored(world: World) -> None:
    """A batch that was taken twice: one of its two jobs has left, the other one trains."""
    files = files_of(world)
    files.claim.write_text(json.dumps({"job_id": "7_0"}))
    [key] = world.cluster.jobs
    world.cluster.jobs[key] = world.cluster.jobs[key]._replace(state="FAILED")
    assert (attempt(world).job, attempt(world).claimed) == (None, True)
    files.claim.write_text(json.dumps({"job_id": "1_0"}))
    assert attempt(world).job == world.cluster.jobs[key]


def test_of_two_jobs_the_holder_of_the_claim_counts(world: World) -> None:
    [(key, first)] = world.cluster.jobs.items()
    second = first._replace(job_id="2_0")
    world.cluster.rivals[key] = [first, second]
    assert (attempt(world).job, attempt(world).rivals) == (None, ("1_0", "2_0"))
    world.cluster.rivals[key] = [first, second._replace(state="CANCELLED")]
    assert (attempt(world).job, attempt(world).rivals) == (first, ())  # the other is over and never began
    world.cluster.rivals[key] = [first._replace(state="RUNNING"), second]
    files_of(world).claim.write_text('{"job_id": "2_0"}')
    assert (attempt(world).job, attempt(world).rivals) == (second, ())


def test_a_requeued_job_is_recognised_by_its_file(world: World) -> None:
    files = files_of(world)
    write_atomically(files.claim, json.dumps({"job_id": attempt(world).row.job_id}))
    world.cluster.jobs.clear()
    assert not attempt(world).restarted
    write_atomically(files.restarted, "{}")
    assert attempt(world).restarted


@pytest.mark.parametrize("inferred", [True, False])
def test_a_begun_task_counts_as_cancelled_in_the_queue_only_by_its_own_record(world: World, inferred: bool) -> None:
    """Its array's line lags; its own tells that Slurm had requeued it when somebody cancelled it."""
    write_atomically(files_of(world).claim, json.dumps({"job_id": "1_0"}))
    [(key, waiting)] = world.cluster.jobs.items()
    world.cluster.jobs[key] = waiting._replace(state="CANCELLED", inferred=inferred)
    assert (attempt(world).job is None) is inferred


def test_our_own_revocation_is_no_claim(world: World) -> None:
    token = attempt(world).row.token
    claim = files_of(world).claim
    claim.write_text(json.dumps({"job_id": revoked(token)}))
    assert not attempt(world).claimed
    claim.write_text(json.dumps({"job_id": revoked("another")}))
    assert attempt(world).claimed


def test_signs_of_life_are_looked_for_where_the_executor_is_silent(world: World) -> None:
    write_atomically(files_of(world).heartbeat(0), '{"ts": 123.0}')
    assert attempt(world).signs == ()
    world.cluster.jobs.clear()
    assert attempt(world).signs == (123.0,)


def test_the_agents_log_is_read_where_they_left_no_outcome(world: World) -> None:
    batch = world.paths.batch(attempt(world).row.token)
    (batch / "1_0_0_log.err").write_text("".join(f"line {i}\n" for i in range(100)))
    (batch / "1_1_0_log.err").write_text("another task's\n")
    assert attempt(world).lines == ()
    world.cluster.jobs = {key: view._replace(state="FAILED") for key, view in world.cluster.jobs.items()}
    lines = attempt(world).lines
    assert [(line.file, line.number, line.text) for line in lines[-2:]] == [
        ("1_0_0_log.err", 99, "line 98"),
        ("1_0_0_log.err", 100, "line 99"),
    ]
    assert len(lines) == 40
    world.cluster.jobs = {key: view._replace(state="PENDING") for key, view in world.cluster.jobs.items()}
    world.run_jobs("FAILED", exit_code=1)
    assert attempt(world).lines == ()
    assert attempt(world).complete


def test_a_checkpoint_of_this_experiment_is_found_until_the_run_is_settled(world: World) -> None:
    row = world.runs()["depth-1"]
    folder = world.paths.run("depth-1").checkpoints(row.config_hash)
    folder.mkdir(parents=True)
    for step, config_hash in ((20, row.config_hash), (40, "another")):
        draft = checkpoint.begin(folder, 1, step)
        (draft / "weights").write_text("x")
        files = checkpoint.seal(draft, [draft / "weights"])
        checkpoint.commit(draft, checkpoint.Manifest(step, config_hash, 1, 0, 1, 0, files))
    assert run(world).checkpoint_step == 20
    with world.store.write() as conn:
        queries.update_run(conn, row.id, state=RunState.COMPLETED)
    assert run(world).checkpoint_step == 0


def test_an_ended_attempt_costs_no_look_at_its_files(world: World) -> None:
    files = files_of(world)
    files.claim.write_text("x")
    with world.store.write() as conn:
        queries.update_attempt(conn, attempt(world).row.id, state=AttemptState.FAILED)
    view = attempt(world)
    assert (view.job, view.claimed) == (None, False)


def test_a_look_that_failed_is_part_of_the_snapshot(world: World) -> None:
    def away() -> None:
        raise Unreachable("squeue is away")

    world.cluster.on_look = away
    stored = read_store(world.store, world.campaign)
    snapshot, trouble = observe(stored, world.cluster, world.paths, RunMetrics(world.store))
    assert (snapshot.listed, snapshot.complete, str(trouble)) == (False, False, "squeue is away")


def test_how_long_steps_take_is_asked_only_where_none_came_for_long(world: World) -> None:
    asked: list[int] = []

    class Steps(RunMetrics):
        def step_times(self, run_id: int) -> StepTimes:
            asked.append(run_id)
            return StepTimes(0.1, 40, 0.5)

    def seen() -> RunView:
        stored = read_store(world.store, world.campaign)
        return observe(stored, world.cluster, world.paths, Steps(world.store))[0].runs[0]

    world.cluster.jobs = {key: view._replace(state="RUNNING") for key, view in world.cluster.jobs.items()}
    beat = files_of(world).heartbeat(0)
    for idle_s in (599, 600):
        write_atomically(beat, json.dumps({"ts": 1.0, "idle_s": idle_s, "phase": "train", "ranks": {}}))
        view = seen()
        assert (view.p99_step_s, view.steps_known) == ((0.5, 40) if idle_s == 600 else (None, 0))
    assert asked == [run(world).run.id]


def test_losses_of_before_are_asked_for_only_where_an_attempt_made_no_step(tmp_path: Path) -> None:
    """A script that finds its checkpoint of the last step does nothing, and exits with 0."""
    world = make_world(tmp_path)
    world.record(matrix={"depth": [1]})
    world.run_pass()
    world.run_jobs(loss=math.nan)
    world.run_pass()
    assert world.states() == {"depth-1": "failed"}
    campaigns.retry(world.store, world.campaign, ["depth-1"])
    world.run_pass()
    world.run_jobs(loss=None)
    stored = read_store(world.store, world.campaign)
    seen = observe(stored, world.cluster, world.paths, RunMetrics(world.store))[0].runs[0]
    assert seen.diverged_before == ("loss", 1)
    world.run_pass()
    assert [attempt.failure_class for attempt in world.attempts("depth-1")] == ["diverged"] * 2
    assert world.states() == {"depth-1": "failed"}
    world.store.close()


def test_the_folder_is_tried_only_where_a_run_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(world).storage is None
    with world.store.write() as conn:
        queries.update_attempt(conn, attempt(world).row.id, state=AttemptState.FAILED, failure_class="storage")
    assert look(world).storage == ""
    assert not list(world.paths.dir.rglob(".probe*"))
    for desired, state in (("cancel", RunState.PENDING), ("run", RunState.FAILED)):  # it waits for nothing
        with world.store.write() as conn:
            queries.update_run(conn, run(world).run.id, desired=desired, state=state)
        assert look(world).storage is None
    with world.store.write() as conn:
        queries.update_run(conn, run(world).run.id, state=RunState.PENDING)
    monkeypatch.setattr(file_systems, "try_writing", full)
    assert look(world).storage == "No space left on device"


def full(_probe: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_checkpoint_must_find_room(tmp_path: Path) -> None:
    assert storage.trouble(tmp_path) is None
    tight, away = storage.trouble(tmp_path, 2**62), storage.trouble(tmp_path / "away")
    assert tight is not None
    assert re.fullmatch(r"[\d.]+ GB free, a checkpoint needs 4.* GB", tight.why)
    assert away is not None
    assert away.why == "No such file or directory"


def test_nodes_are_counted_only_where_one_has_a_strike(world: World) -> None:
    world.cluster.nodes = lambda: 4  # type: ignore[method-assign]
    assert look(world).nodes is None
    with world.store.write() as conn:
        queries.update_attempt(conn, attempt(world).row.id, state=AttemptState.FAILED, failure_class="gpu")
    assert look(world).nodes == 4


def test_only_this_machine_s_room_is_limited(tmp_path: Path, world: World) -> None:
    assert look(world).capacity is None
    (tmp_path / "local").mkdir()
    local = make_world(tmp_path / "local")
    local.record(executor="local", slurm={}, local={"parallel": 3})
    assert look(local).capacity == 3
    local.store.close()
