"""What is written down of an end, and what an attempt is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.errors import StaleLease
from dscampaign.db.records import AttemptRow, MemoryObservation
from dscampaign.db.states import AttemptState, RunState
from dscampaign.files.atomic_files import read_json
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import JobArray, SubmissionRefused
from dscampaign.orchestrator.executors.job_request import resources, run_config
from dscampaign.orchestrator.failures.evidence import Ended
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.failures.verdict import Verdict
from dscampaign.orchestrator.memory.observations import ledgers_of
from dscampaign.orchestrator.reconcile.act import act
from dscampaign.orchestrator.reconcile.actions import (
    Action,
    CancelJob,
    Finish,
    MarkAttempt,
    Note,
    Resize,
    SetRun,
    Submit,
)
from dscampaign.orchestrator.reconcile.lease import FencedWriter
from dscampaign.tests.support.policy_world import job, log_lines
from dscampaign.tests.support.world_on_disk import World, make_world, queued_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with queued_world(tmp_path) as made:
        yield made


def authority(world: World) -> FencedWriter:
    with world.store.write() as conn:
        epoch = leases.acquire_lease(conn, "test", "me", 60.0)
    assert epoch is not None
    return FencedWriter(world.store, "test", epoch, world.campaign.id)


def take(world: World, *actions: Action) -> list[Unreachable]:
    return act(actions, authority(world), world.cluster, world.paths)


def latest(world: World) -> AttemptRow:
    return world.attempts("depth-1")[-1]


def finish(world: World, kind: FailureClass = FailureClass.CRASH, **values: Any) -> Finish:
    """The end of the attempt without a word of its agents."""
    known = {"job": None, "outcomes": (), "nodes": 1, "target_step": 3, "steps_decide": False, "on_cpu": True}
    ended = Ended(**{**known, **values})
    line = log_lines("boom")[0]
    return Finish(latest(world), AttemptState.FAILED, Verdict(kind, "boom", "mend it", line, "r"), ended, 500.0)


def test_no_job_can_begin_an_attempt_that_is_over(world: World) -> None:
    """One that an administrator requeues, or the twin of one that was submitted twice."""
    take(world, finish(world, job=job("BOOT_FAIL")))
    assert latest(world).state is AttemptState.FAILED
    world.run_jobs()
    assert world.ran == []


def test_the_claim_of_the_job_that_ran_stays(world: World) -> None:
    world.run_jobs("FAILED", exit_code=1)
    claim = world.paths.run("depth-1").attempt(1).claim
    before = read_json(claim)
    take(world, finish(world))
    assert read_json(claim) == before


def test_the_proof_of_an_end_is_kept(world: World) -> None:
    take(world, finish(world, job=job("FAILED", exit_code="1:0", started_s=100.0, ended_s=160.0)))
    row = latest(world)
    assert (row.state, row.failure_class, row.started_s, row.ended_s) == ("failed", "crash", 100.0, 160.0)
    assert (row.gpu_seconds, row.evidence["seen_s"], row.evidence["reason"]) == (60.0, 500.0, "boom")
    assert row.evidence["line"] == {"file": "launcher-0.log", "number": 1, "text": "boom"}
    assert row.evidence["job"]["exit_code"] == "1:0"
    assert [event.message for event in world.events("ended")] == ["attempt 1: crash: boom"]


def test_a_lost_running_attempt_has_gpu_seconds(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, latest(world).id, created_s=50.0)
    take(world, MarkAttempt(latest(world), AttemptState.RUNNING, 100.0, 7))
    assert (latest(world).state, latest(world).start_step) == ("running", 7)
    take(world, finish(world))
    assert (latest(world).ended_s, latest(world).gpu_seconds) == (500.0, 400.0)


def test_an_end_is_recorded_once(world: World) -> None:
    first = finish(world)
    take(world, first)
    take(world, replace(first, state=AttemptState.COMPLETED), MarkAttempt(first.attempt, AttemptState.RUNNING))
    assert latest(world).state is AttemptState.FAILED
    assert len(world.events("ended")) == 1


def test_an_out_of_memory_is_remembered_for_all_that_are_like_it(world: World) -> None:
    row = latest(world)
    with world.store.write() as conn:
        queries.update_attempt(conn, row.id, memory_key="k", micro_batch=8)
        told = MemoryObservation("k|GPU|2", row.id, 8, oom=False, after_init_gb=2.0, per_sample_gb=1.0, usable_gb=9.0)
        queries.observe_memory(conn, told)
    for _ in range(2):
        take(world, finish(world, FailureClass.OOM))
    with world.store.read() as conn:
        ledger = ledgers_of(conn, ["k"])["k"]
    assert [(seen.key, seen.micro_batch, seen.oom) for seen in ledger.observations] == [
        ("k|GPU|2", 8, False),
        ("k|GPU|2", 8, True),
    ]
    assert (ledger.too_big, ledger.usable_gb, ledger.predict_gb(4)) == (8, 9.0, 6.0)


def test_notes_are_kept_in_the_evidence_of_the_attempt(world: World) -> None:
    take(world, Note(latest(world), "hang", "no step for 601 s"), Note(latest(world), "pruned", "too slow"))
    assert latest(world).evidence == {"hang": "no step for 601 s", "pruned": "too slow"}
    assert [event.message for event in world.events("hang")] == ["no step for 601 s"]


def test_a_queued_attempt_gets_its_smaller_micro_batch(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, latest(world).id, micro_batch=8, accumulation=2)
    take(world, Resize(latest(world), 4, 12.5, "8 ran out of memory"))
    row = latest(world)
    assert (row.micro_batch, row.accumulation, row.predicted_gb) == (4, 4, 12.5)
    told = read_json(world.paths.run("depth-1").attempt(1).resize)
    assert told == {"micro_batch": 4, "accumulation": 4, "why": "8 ran out of memory"}
    take(world, MarkAttempt(row, AttemptState.RUNNING, 1.0, 0, 8, 2))  # it had begun before it could read that
    assert (latest(world).micro_batch, latest(world).accumulation) == (8, 2)


def test_where_nothing_runs_without_a_bad_node_it_is_not_done_without(world: World) -> None:
    take(world, finish(world))
    [run] = world.runs().values()

    def refuse(batch: JobArray) -> None:
        if batch.resources.get("exclude"):
            raise SubmissionRefused("Requested node configuration is not available")

    world.cluster.on_submit = refuse
    assert take(world, Submit(run, run_config(run), 2, None, "tried again", exclude=("n1",))) == []
    assert "exclude" not in world.cluster.submitted[-1].resources
    assert (latest(world).generation, latest(world).state) == (2, AttemptState.QUEUED)
    assert "Requested node configuration" in world.events("withdrawn")[-1].message


def test_changes_of_an_attempt_are_in_its_row_payload_and_event(world: World) -> None:
    take(world, finish(world))
    [run] = world.runs().values()
    changes = ("expandable_segments",)
    take(
        world,
        Submit(run, run_config(run), 2, None, "tried again", changes=changes, predicted_gb=3.5, exclude=("n7", "n9")),
    )
    row = latest(world)
    assert (row.changes, row.predicted_gb) == ("expandable_segments", 3.5)
    assert world.cluster.submitted[-1].resources["exclude"] == "n7,n9"
    assert world.cluster.payloads()[-1].env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    told = world.events("submitting")[-1]
    assert "with expandable_segments without n7, n9: tried again" in told.message
    assert told.data == {"exclude": ["n7", "n9"]}


def test_nothing_is_done_without_the_lease(world: World) -> None:
    stale = replace(authority(world), epoch=99)
    run = world.runs()["depth-1"]
    for action in (SetRun(run, RunState.FAILED, "x"), finish(world), Submit(run, run_config(run), 2, None, "why")):
        with pytest.raises(StaleLease):
            act([action], stale, world.cluster, world.paths)
    assert world.runs()["depth-1"] == run
    assert len(world.cluster.submitted) == 1


def test_the_state_of_a_run_that_its_user_has_changed_meanwhile_is_left_to_the_next_pass(world: World) -> None:
    """As when a run completes while a submission gives it more steps: they would never be made."""
    run = world.runs()["depth-1"]
    with world.store.write() as conn:
        queries.update_run(conn, run.id, target_step=9)
    take(world, SetRun(run, RunState.COMPLETED, ""))
    assert world.states() == {"depth-1": "queued"}
    take(world, SetRun(world.runs()["depth-1"], RunState.COMPLETED, ""))
    assert world.states() == {"depth-1": "completed"}


def test_a_cancellation_that_was_not_heard_stops_nothing_else(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: Any) -> None:
        raise Unreachable("scancel is away")

    monkeypatch.setattr(world.cluster, "cancel", away)
    run = world.runs()["depth-1"]
    troubles = take(
        world,
        CancelJob(latest(world), "1_0"),
        SetRun(run, RunState.FAILED, "x"),
        Submit(run, run_config(run), 2, None, "y"),
    )
    assert [str(trouble) for trouble in troubles] == ["scancel is away"]
    assert len(world.cluster.submitted) == 2


def test_one_shape_that_cannot_be_submitted_does_not_hold_up_another(world: World) -> None:
    world.record(matrix={"depth": [1, 2, 3], "exclude": [{"depth": 3}], "include": [{"depth": 3, "slurm.mem": "2G"}]})
    world.cluster.on_submit = lambda batch: fail_if(batch.resources["mem"] == "1G")
    done = world.run_pass()
    assert [str(trouble) for trouble in done.troubles] == ["no room"]
    assert world.states() == {"depth-1": "queued", "depth-2": "pending", "depth-3_mem-2G": "queued"}
    assert [event.message for event in world.events("withdrawn")] == ["attempt 1 was not submitted: no room"]


def fail_if(condition: bool) -> None:
    if condition:
        raise Unreachable("no room")


def test_more_memory_after_the_host_ran_out_and_nothing_else(world: World) -> None:
    config = run_config(world.runs()["depth-1"])
    before, after = resources(config), resources(config, mem_scale=1.5)
    assert (before["mem"], after["mem"]) == ("1G", "1536M")
    assert {**after, "mem": "1G"} == before
    assert "gpus_per_node" not in before  # of a run on CPUs


def test_payloads_survive_a_crash_of_the_machine_from_before_sbatch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names too: the folder is synced once, after the last of them."""
    synced: list[tuple[Path, frozenset[str]]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path, frozenset(each.name for each in path.iterdir()) if path.is_dir() else frozenset()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    world = make_world(tmp_path)
    world.record()
    before: list[set[str]] = []

    def check(batch: JobArray) -> None:
        before.append({name for path, names in synced if path == batch.folder for name in names})

    world.cluster.on_submit = check
    world.run_pass()
    assert before == [{"closed", "payloads.jsonl"}]
    world.store.close()
