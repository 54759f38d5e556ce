"""What a pass sees of the store, the shared folder and the executor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.orchestrator.executors import storage
from dscampaign.orchestrator.reconcile.attempt_files import revoked
from dscampaign.orchestrator.reconcile.observe import observe
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
    return observe(read_store(world.store, world.campaign), world.cluster, world.paths, world.store)[0]


def run(world: World) -> RunView:
    [view] = look(world).runs
    return view


def attempt(world: World) -> AttemptView:
    latest = run(world).latest
    assert latest is not None
    return latest


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


def test_a_checkpoint_must_find_room(tmp_path: Path) -> None:
    assert storage.trouble(tmp_path) is None
    tight, away = storage.trouble(tmp_path, 2**62), storage.trouble(tmp_path / "away")
    assert tight is not None
    assert re.fullmatch(r"[\d.]+ GB free, a checkpoint needs 4.* GB", tight.why)
    assert away is not None
    assert away.why == "No such file or directory"


def test_only_this_machine_s_room_is_limited(tmp_path: Path, world: World) -> None:
    assert look(world).capacity is None
    (tmp_path / "local").mkdir()
    local = make_world(tmp_path / "local")
    local.record(executor="local", slurm={}, local={"parallel": 3})
    assert look(local).capacity == 3
    local.store.close()


@pytest.mark.parametrize(
    ("script", "changes", "fixed"),
    [
        ("os.environ['CAMPAIGN_STEPS']", {}, True),
        ("os.environ['CAMPAIGN_MICRO_BATCH']", {}, False),
        ("os.environ['CAMPAIGN_ACCUMULATION']", {}, False),
        ("os.environ[f'CAMPAIGN_{name}']", {}, False),
        ("", {"command": ["train.py", "--deepspeed_config", "{ds_config}", "{depth}"]}, False),
        ("", {"env": {"BATCH": "{micro_batch}"}}, False),
        ("", {"code": "live"}, False),
    ],
)
def test_whether_a_micro_batch_reaches_a_script(
    tmp_path: Path, script: str, changes: dict[str, Any], fixed: bool
) -> None:
    world = make_world(tmp_path)
    (tmp_path / "train.py").write_text(script)
    world.record(train={"steps": 3, "global_batch": 8, "micro_batch": 8}, matrix={"depth": [1]}, **changes)
    world.run_pass()
    files_of(world)
    assert run(world).fixes_batch() is fixed
    world.store.close()


def test_a_script_that_gets_no_micro_batch_ends_at_its_first_out_of_memory(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.record(train={"global_batch": 8, "micro_batch": 8}, matrix={"depth": [1]})
    world.run_pass()
    world.run_jobs("FAILED", exit_code=1, error="CUDA out of memory.", loss=None)
    for _ in range(2):  # the second looks at a run that has failed
        world.run_pass()
        assert (world.states(), len(world.attempts("depth-1"))) == ({"depth-1": "failed"}, 1)
    assert "{micro_batch}" in world.runs()["depth-1"].reason
    world.store.close()
