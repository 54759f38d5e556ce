"""Passes of the loop on a real store: whatever breaks at whichever moment, nothing runs twice and all settles."""

from __future__ import annotations

import json
import math
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from dscampaign.db import leases, queries
from dscampaign.db.ingest import spool as spools
from dscampaign.db.ingest.spool import IngestResult, ingest
from dscampaign.db.schema import step_metric
from dscampaign.db.states import RunState
from dscampaign.files.atomic_files import create_exclusively
from dscampaign.files.private_files import make_below
from dscampaign.jobs.shared.job_array import write_payloads
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import ArrayTooLarge, JobArray, SubmissionRefused, SubmissionUnclear
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.reconcile import attempt_files, lease, loop
from dscampaign.orchestrator.reconcile import submit as submission
from dscampaign.orchestrator.reconcile.actions import Revoke, Submit
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.tests.simulation.clock import Clock
from dscampaign.tests.support.world_on_disk import SPEC, Cluster, World


class Killed(BaseException):
    """The process died here."""


# -- the ordinary course ----------------------------------------------------------------------------------------


def test_a_campaign_from_submission_to_results(world: World) -> None:
    world.record()
    done = world.run_pass()
    assert len([a for a in done.actions if isinstance(a, Submit)]) == 2
    assert [batch.size for batch in world.cluster.submitted] == [2]  # one shape, one array
    assert world.states() == {"depth-1": "queued", "depth-2": "queued"}
    world.run_jobs()
    world.settle()
    assert world.states() == {"depth-1": "completed", "depth-2": "completed"}
    assert world.steps("depth-1") == [1, 2, 3]
    [attempt] = world.attempts("depth-1")
    assert (attempt.job_id, attempt.state, attempt.failure_class) == ("1_0", "completed", "completed")
    assert (attempt.started_s, attempt.ended_s, attempt.gpu_seconds) == (100.0, 160.0, 60.0)


# -- a submission that breaks ------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_objection_of_sbatch_is_a_refusal_once_the_queue_has_no_job(world: World) -> None:
    world.record(matrix={"depth": [1]})
    world.cluster.on_submit = raising(SubmissionUnclear("sbatch: error: what is this?", objects=True))
    world.run_pass()
    assert world.states() == {"depth-1": "queued"}
    world.settle()
    assert world.states() == {"depth-1": "failed"}
    [attempt] = world.attempts("depth-1")
    assert (attempt.failure_class, attempt.evidence["reason"]) == ("refused", "sbatch refused it: what is this?")


@pytest.mark.parametrize(
    ("waits", "slurm"), [("PartitionTimeLimit", {"time": "4"}), ("Priority", {"partition": "other"})]
)
def test_a_queued_job_makes_room_once_the_spec_asks_for_another(
    world: World, waits: str, slurm: dict[str, str]
) -> None:
    world.record(matrix={"depth": [1]})
    world.run_pass()
    [(key, job)] = world.cluster.jobs.items()
    world.cluster.jobs[key] = job._replace(reason=waits)
    world.run_pass()
    world.run_pass()
    assert world.cluster.cancelled == []
    world.record(matrix={"depth": [1]}, slurm=slurm)
    world.run_pass()
    assert world.cluster.cancelled == ["1_0"]
    world.settle()
    assert [attempt.failure_class for attempt in world.attempts("depth-1")] == ["cancelled", "completed"]
    assert world.cluster.submitted[-1].resources.items() >= slurm.items()


def test_a_run_leaves_a_shared_job_that_waits_and_the_last_run_cancels_it(world: World) -> None:
    world.record(slurm={**SPEC["slurm"], "runs_per_job": 2})
    world.run_pass()
    assert list(world.cluster.jobs) == [world.attempts("depth-2")[0].job_key]
    campaigns.cancel(world.store, world.campaign, ["depth-1"])
    world.run_pass()
    [attempt] = world.attempts("depth-1")
    assert (attempt.failure_class, attempt.evidence["reason"]) == ("cancelled", "cancelled before it began")
    assert world.cluster.cancelled == []
    campaigns.cancel(world.store, world.campaign, ["depth-2"])
    world.run_pass()
    assert world.cluster.cancelled == ["1_0"]


def test_a_full_cluster_costs_no_budget_and_is_asked_once_a_pass(world: World) -> None:
    works = [{"depth": depth, "slurm.mem": f"{depth}G", "label": str(depth)} for depth in (1, 2)]
    world.record(matrix={"work": works}, retry={**SPEC["retry"], "infra": 0})
    asked: list[str] = []

    def on_submit(batch: JobArray) -> None:
        asked.append(batch.token)
        raise SubmissionUnclear("the cluster takes no more jobs for now", full=True)

    world.cluster.on_submit = on_submit
    for number in range(1, 4):
        done = world.run_pass()
        assert "the cluster takes no more jobs" in str(done.troubles[-1])
        assert len(asked) == number
    assert set(world.states().values()) <= {"queued", "pending"}
    assert len(world.events("queue.full")) == 1
    world.cluster.on_submit = lambda _: None
    world.settle()
    assert set(world.states().values()) == {"completed"}


def taking(cluster: Cluster, most: int, *, for_now: bool) -> Callable[[JobArray], None]:
    """A cluster in which no array may have more elements; or, for now, no user more jobs in the queue."""

    def on_submit(batch: JobArray) -> None:
        queued = sum(not view.terminal for view in cluster.jobs.values()) if for_now else 0
        if queued + batch.size > most:
            raise ArrayTooLarge("no", for_now=for_now)

    return on_submit


def test_an_array_larger_than_the_site_allows_is_halved(world: World) -> None:
    world.record(matrix={"depth": list(range(10))})
    world.cluster.on_submit = taking(world.cluster, 3, for_now=False)
    assert world.run_pass().troubles == ()
    assert [batch.size for batch in world.cluster.submitted] == [3, 3, 3, 1]
    world.settle()
    assert sorted(world.ran) == [(f"depth-{depth}", 1) for depth in range(10)]
    assert len(world.events("submitting")) == 10  # what was too large has left nothing behind


def test_a_queue_that_is_full_keeps_no_other_waiting(world: World) -> None:
    works = [{"depth": depth, "slurm.mem": f"{depth}G", "label": str(depth)} for depth in (1, 2)]
    world.record(matrix={"work": works, "slurm.partition": ["full", "free"]})
    asked: list[str] = []

    def on_submit(batch: JobArray) -> None:
        asked.append(batch.resources["partition"])
        if batch.resources["partition"] == "full":
            raise ArrayTooLarge("no", for_now=True)

    world.cluster.on_submit = on_submit
    done = world.run_pass()
    assert [str(trouble) for trouble in done.troubles] == ["1 run waits for room in the queue: no"]
    assert asked == ["full", "free", "free"]  # of the full one, no second shape is tried
    world.cluster.on_submit = lambda _: None
    world.settle()
    assert len(world.ran) == 4


def test_a_queue_that_was_full_is_tried_carefully(world: World) -> None:
    world.record(matrix={"depth": list(range(10))})
    asked: list[int] = []
    limit = taking(world.cluster, 2, for_now=True)

    def on_submit(batch: JobArray) -> None:
        asked.append(batch.size)
        limit(batch)

    world.cluster.on_submit = on_submit
    world.run_pass()
    assert asked == [10, 5, 3, 2, 2, 1]
    asked.clear()
    world.run_pass()
    assert asked == [1]
    asked.clear()
    limit = taking(world.cluster, 100, for_now=True)
    world.run_pass()
    assert asked == [1, 2, 4, 1]


# -- a job that breaks -------------------------------------------------------------------------------------------


def test_a_job_that_was_faster_than_the_revocation_keeps_its_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.record(matrix={"depth": [1]})
    world.run_pass()
    hidden = dict(world.cluster.jobs)
    world.cluster.jobs.clear()

    def job_starts_now(base: Path, folder: Path) -> None:
        make_below(base, folder)
        create_exclusively(folder / "claim", json.dumps({"job_id": "1_0"}))

    monkeypatch.setattr(attempt_files, "make_below", job_starts_now)
    assert [type(action) for action in world.run_pass().actions] == [Revoke]
    world.cluster.jobs.update(hidden)
    assert world.run_pass().actions == ()
    assert [str(a.state) for a in world.attempts("depth-1")] == ["queued"]


def test_lines_that_could_not_be_read_for_a_while_are_taken_though_two_newer_attempts_have_begun(world: World) -> None:
    world.record(matrix={"depth": [1]})
    world.run_pass()
    spool = world.paths.run("depth-1").attempt(1).metrics
    for _ in range(2):
        world.run_jobs("PREEMPTED", exit_code=None)
        if spool.is_file():
            spool.rename(spool.with_name("away"))
            spool.mkdir()  # which cannot be read as a file
        world.run_pass()
    assert len(world.attempts("depth-1")) == 3
    spool.rmdir()
    spool.with_name("away").rename(spool)
    world.run_pass()
    with world.store.read() as conn:
        stored = conn.execute(select(step_metric.c.attempt_id, step_metric.c.step)).all()
    first, second, _ = (attempt.id for attempt in world.attempts("depth-1"))
    assert sorted(stored) == [(first, 1), (first, 2), (first, 3), (second, 1), (second, 2), (second, 3)]


# -- what the user wants -----------------------------------------------------------------------------------------


def _as_pending(world: World) -> None:
    world.record()


def _as_queued(world: World) -> None:
    world.record()
    world.run_pass()


def _as_waiting_for_the_next_try(world: World) -> None:
    world.record(retry={"crash": 3, "backoff_s": 3600, "max_backoff_s": 3600})
    world.run_pass()
    world.run_jobs("FAILED", exit_code=1, error="boom")
    world.run_pass()
    assert all(run.not_before_s for run in world.runs().values())


def _as_failed(world: World) -> None:
    world.record(retry={"crash": 0, "backoff_s": 0})
    world.settle(state="FAILED", exit_code=1, error="boom")


def _as_held(world: World) -> None:
    world.record(limits={"gpu_hours": 0.0001})
    with world.store.write() as conn:
        for run in world.runs().values():
            queries.update_run(conn, run.id, state=RunState.HELD, reason="limits.gpu_hours")


_STATES = [
    (_as_pending, "cancelled"),
    (_as_queued, "cancelled"),
    (_as_waiting_for_the_next_try, "cancelled"),
    (_as_failed, "failed"),
    (_as_held, "cancelled"),
]


@pytest.mark.parametrize(("before", "after"), _STATES)
def test_a_cancelled_run_starts_only_by_a_retry(world: World, before: Callable[[World], None], after: str) -> None:
    before(world)
    attempts = {name: len(world.attempts(name)) for name in world.runs()}
    campaigns.cancel(world.store, world.campaign, list(attempts))
    for changes in ({}, {"retry": {"crash": 9, "backoff_s": 0}}, {"slurm": {**SPEC["slurm"], "time": "9"}}):
        world.settle()
        world.record(**changes)
    world.settle()
    assert set(world.states().values()) == {after}
    assert {name: len(world.attempts(name)) for name in world.runs()} == attempts
    campaigns.retry(world.store, world.campaign, list(attempts))
    world.settle()
    assert set(world.states().values()) == {"completed"}


# -- two reconcilers ----------------------------------------------------------------------------------------------


def test_a_holder_that_has_died_on_this_host_is_not_waited_for(world: World) -> None:
    world.record()
    pid = "import os; print(os.getpid(), end='')"
    dead = subprocess.run([sys.executable, "-c", pid], capture_output=True, text=True, check=True).stdout
    for host, waits in (("another-host", True), (socket.gethostname(), False)):
        world.expire_lease()
        with world.store.write() as conn:
            leases.acquire_lease(conn, f"reconciler:{world.campaign.id}", f"{host}:{dead}:x", 60.0)
        assert bool(read_status(world.store, world.campaign).acting) is waits
        with pytest.raises(LeaseHeld, match="being reconciled") if waits else nullcontext():
            world.run_pass()
        assert bool(read_status(world.store, world.campaign).acting) is waits  # nobody gives up another's lease


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the store and of the reconcilers, which passes only when a test says so."""
    made = Clock()
    made.rule(world.store)
    monkeypatch.setattr(lease, "time", made.as_module(), raising=False)
    return made


def on_each_file(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """For each run, and for the payloads of all, a file or folder is made."""

    def then(make: Callable[..., None]) -> Callable[..., None]:
        def made(*args: Any) -> None:
            happens()
            make(*args)

        return made

    monkeypatch.setattr(submission, "make_below", then(make_below))
    monkeypatch.setattr(submission, "write_payloads", then(write_payloads))


def test_the_lease_is_renewed_between_slow_commands_of_slurm(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two reconcilers would take it from each other in every pass, and none would come to its end."""
    world.record(matrix={"depth": [1]})
    world.run_pass()
    other, asked = world.reconciler(), []

    def slow(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[0])
        clock.now_s += 0.55 * lease.LEASE_TTL_S
        with pytest.raises(LeaseHeld):
            other.run_pass()
        return subprocess.CompletedProcess(command, int(command[0] == "sacct"), "", "slurmdbd is down")

    monkeypatch.setattr(subprocess, "run", slow)
    for _ in range(2):
        loop.Reconciler(world.store, world.campaign, SlurmExecutor()).run_pass()
        clock.now_s += lease.LEASE_TTL_S + 1
    assert asked == ["squeue", "sacct"] * 2


def test_a_run_that_reports_faster_than_it_is_read_starves_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.record(matrix={"depth": [1, 2]})
    world.run_pass()
    busy = world.paths.run("depth-1").attempt(1).metrics
    world.run_jobs("FAILED", exit_code=1, error="boom")
    step, most = 3, 20

    def reported(*args: Any) -> IngestResult:
        nonlocal step
        if args[1].path == busy and step < most:
            step += 1
            with busy.open("a") as file:
                file.write(json.dumps({"step": step, "ts": 1.0, "loss": 1.0}) + "\n")
            if step == most:
                raise Killed("the pass has read on for as long as there was something to read")
        return ingest(*args, max_bytes=40)

    monkeypatch.setattr(spools, "ingest", reported)
    monkeypatch.setattr(loop, "LONGEST_DRAIN_S", 0.0, raising=False)
    others = [world.run_pass() for _ in range(5)]
    assert [len(world.attempts(name)) for name in ("depth-1", "depth-2")] == [1, 2]  # what is not read is not judged
    assert all(done.unread and done.goes_on and not done.settled for done in others)
    most = step  # it has ended, too
    for _ in range(step):
        world.run_pass()
    assert len(world.attempts("depth-1")) == 2
    assert world.steps("depth-1") == [*range(1, step + 1)]


@pytest.mark.parametrize("ahead_s", [86_400.0, 300.0])
def test_a_clock_that_is_set_back_makes_no_retry_wait_longer(world: World, clock: Clock, ahead_s: float) -> None:
    world.record(matrix={"depth": [1]}, retry={"crash": 3, "backoff_s": 30, "max_backoff_s": 60})
    world.run_pass()
    clock.now_s += ahead_s
    world.run_jobs("FAILED", exit_code=1, error="boom")
    world.run_pass()
    assert world.states() == {"depth-1": "pending"}
    clock.now_s -= ahead_s
    world.run_pass()
    assert len(world.attempts("depth-1")) == 1  # it waits, as long as it would have
    clock.now_s += 15
    world.run_pass()
    assert len(world.attempts("depth-1")) == 1
    clock.now_s += 16
    world.run_pass()
    assert len(world.attempts("depth-1")) == 2


def test_an_unclear_submission_has_its_grace_from_sbatch_on_however_long_its_files_took(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.record(matrix={"depth": [1]})
    world.cluster.intent_grace_s = 60.0
    on_each_file(monkeypatch, lambda: setattr(clock, "now_s", clock.now_s + 3600))
    world.cluster.on_submit = raising(SubmissionUnclear("Socket timed out"))
    world.run_pass()
    clock.now_s += 50
    assert not any(isinstance(action, Revoke) for action in world.run_pass().actions)
    clock.now_s += 20
    assert any(isinstance(action, Revoke) for action in world.run_pass().actions)


def test_a_refused_submission_that_was_none_runs_nothing(world: World) -> None:
    world.record(matrix={"depth": [1]})
    world.cluster.after_submit = raising(SubmissionRefused("Invalid qos specification"))
    world.run_pass()
    assert world.states() == {"depth-1": "failed"}
    world.run_jobs()
    assert world.ran == []


def test_an_attempt_that_has_begun_is_not_refused(world: World) -> None:
    world.record(matrix={"depth": [1]})

    def begins(_: JobArray) -> None:
        world.run_jobs()
        raise SubmissionRefused("Invalid qos specification")

    world.cluster.after_submit = begins
    world.run_pass()
    world.settle()
    assert world.states() == {"depth-1": "completed"}
    assert world.ran == [("depth-1", 1)]


def test_a_watch_does_not_end_with_a_submission_of_its_last_pass(world: World) -> None:
    """Its submitter found the lease taken, and was told that the next pass takes care of it."""
    world.record(matrix={"depth": [1]})
    world.settle()

    def submitted() -> None:
        world.cluster.on_look = lambda: None
        world.record(matrix={"depth": [1, 2]})
        with pytest.raises(LeaseHeld):
            world.run_pass()

    world.cluster.on_look = submitted
    for _ in world.reconciler().watch(sleep=lambda _: world.run_jobs()):
        pass
    assert world.states() == {"depth-1": "completed", "depth-2": "completed"}


def test_a_pass_reports_the_last_answer_about_waiting_jobs(world: World, clock: Clock) -> None:
    """By itself: the process that made the pass before may be another one, as with a crontab."""
    world.record(matrix={"depth": [1, 2, 3]})
    world.cluster.lost_grace_s = 600.0

    def passes(later_s: float, *, away: bool = False) -> dict[str, Any]:
        clock.now_s += later_s
        world.cluster.on_look = raise_unreachable if away else lambda: None
        world.run_pass()
        return {one.job_id: pytest.approx(one.ago_s, abs=0.01) for one in world.cluster.waited}

    def raise_unreachable() -> None:
        raise Unreachable("squeue is away")

    assert passes(0.0) == {}
    assert passes(60.0) == {f"1_{index}": 60.0 for index in range(3)}  # since they were submitted
    passes(50.0, away=True)
    assert passes(5.0) == {f"1_{index}": 55.0 for index in range(3)}  # since that was last seen
    token = world.cluster.submitted[0].token
    world.cluster.jobs[token, 0] = world.cluster.jobs[token, 0]._replace(state="RUNNING")
    del world.cluster.jobs[token, 1]
    assert passes(1.0).keys() == {"1_0", "1_1", "1_2"}
    # one began, and one is absent: since when, nobody knows
    assert passes(30.0) == {"1_1": math.inf, "1_2": 30.0}
    assert {one.job_id: one.missed_s for one in world.cluster.waited} == {"1_1": pytest.approx(30.0), "1_2": 0.0}
