"""Jobs that run several runs: who shares one, and what follows from its state for each of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import AttemptState, RunState
from dscampaign.jobs.shared.job_array import JobRecord, StepEnd
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.job_request import shared_jobs
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.actions import CancelJob, Finish, Revoke, SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.shared_jobs import own_part
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, JobShare, Queue, RunView
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import RetryConfig
from dscampaign.tests.support.policy_world import (
    NOW_S,
    attempt_row,
    ended_row,
    job,
    of_kind,
    outcome,
    rank_error,
    run_row,
    run_view,
    snapshot,
)

SHARED: dict[str, Any] = {"task": 0, "position": 1, "array_index": 1}
CLAIM = {"job_id": "7_0", "ts": NOW_S - 3500}


def names(most: int, conditions: int, repeats: int) -> list[list[str]]:
    runs = [run_row(name=f"{c}.{r}", repeat=r) for r in range(repeats) for c in "abcdefg"[:conditions]]
    return [[run.name for run in one] for one in shared_jobs(runs, most, lambda run: run)]


def test_a_job_has_whole_repeats_in_an_order_that_rotates() -> None:
    assert names(3, 3, 3) == [["a.0", "b.0", "c.0"], ["b.1", "c.1", "a.1"], ["c.2", "a.2", "b.2"]]
    assert names(5, 2, 3) == [["a.0", "b.0", "b.1", "a.1"], ["a.2", "b.2"]]
    assert names(2, 3, 1) == [["a.0", "b.0"], ["c.0"]]
    assert names(1, 2, 2) == [["a.0"], ["b.0"], ["a.1"], ["b.1"]]


def waiting(share: JobShare, state: str = "PENDING", **values: Any) -> RunView:
    """A run behind others in its job."""
    row = attempt_row(state=AttemptState.QUEUED, started_s=None, **{**SHARED, **values})
    return run_view(AttemptView(row, job(state, nodes="n1", started_s=NOW_S - 4000), share=share))


def decided(view: RunView, **values: Any) -> list[Any]:
    return decide(snapshot(view, **values))


def test_a_run_waits_for_its_turn() -> None:
    [told] = decided(waiting(JobShare(runs=True, began=True)))
    assert isinstance(told, SetRun)
    assert told.reason == "waiting: place 2 in job 7_0, which runs several in turn"


@pytest.mark.parametrize("state", ["FAILED", "NODE_FAIL", "TIMEOUT", "PREEMPTED", "COMPLETED"])
def test_a_run_goes_back_if_its_job_is_over_before_its_turn(state: str) -> None:
    for began, position in ((True, 0), (False, 1)):
        [revoke] = of_kind(Revoke, decided(waiting(JobShare(False, began), state, position=position)))
        assert (revoke.wanted, revoke.why) == (True, "job 7_0 ended before its turn")
    [first] = of_kind(Finish, decided(waiting(JobShare(False, began=False), state, position=0)))
    assert first.verdict.kind is not FailureClass.RETURNED


def test_who_cancels_a_job_cancels_its_runs() -> None:
    mine, roots = (
        replace(view, attempts=(replace(view.attempts[0], job=job("CANCELLED", nodes="n1", cancelled_by=by)),))
        for view, by in ((waiting(JobShare(False, True)), 7), (waiting(JobShare(False, True)), 0))
    )
    assert [end.verdict.kind for end in of_kind(Finish, decided(mine, user=7))] == ["cancelled"]
    assert of_kind(Revoke, decided(roots, user=7))


def test_a_run_that_went_back_starts_as_if_it_had_not_been_submitted() -> None:
    """Neither budgets nor waits count it, nor the attempts between which it lies."""
    run = run_row(generation=2)
    [submit] = of_kind(Submit, decided(run_view(ended_row(1, "oom"), ended_row(2, "returned"), run=run)))
    assert (submit.generation, submit.micro_batch) == (3, 4)
    tried = [ended_row(number, "returned", reason="job 7_0 ended") for number in range(1, 9)]
    [again] = of_kind(Submit, decided(run_view(*tried, run=run_row(generation=8))))
    assert (again.generation, again.why) == (9, "job 7_0 ended")


def test_a_shared_job_is_cancelled_only_if_nobody_else_wants_it() -> None:
    queued = JobShare(runs=False, began=False)
    view = waiting(queued)
    view = replace(view, run=replace(view.run, desired="cancel"))
    [cancel] = of_kind(CancelJob, decided(view))
    assert (cancel.whole, cancel.closes) == (True, False)
    other = waiting(queued, run_id=2, id=2, position=0, array_index=0)
    other = replace(other, run=replace(other.run, id=2, name="r2"))
    for actions in (decide(snapshot(view, other)), decided(view, queue=Queue(1, shared={("t1", 0)}))):
        assert not of_kind(CancelJob, actions)
        assert [revoke.wanted for revoke in of_kind(Revoke, actions)] == [False]
    running = AttemptView(attempt_row(**SHARED), job("RUNNING"), claimed=True, share=JobShare(True, True))
    [closing] = of_kind(CancelJob, decided(run_view(running, run=run_row(generation=1, desired="cancel"))))
    assert closing.closes


def part(state: str, record: JobRecord, *outcomes: Any, claimed: bool = True) -> tuple[str, bool]:
    view = job(state, nodes="n1", step_out_of_memory=state == "OUT_OF_MEMORY")
    own = own_part(attempt_row(**SHARED), view, record, CLAIM if claimed else None, outcomes)
    return own.state, own.step_out_of_memory


def test_the_state_of_a_job_is_not_that_of_each_run() -> None:
    begun = JobRecord(begun=(0, 1))
    ended = replace(begun, begun=(0, 1, 2), ended={1: StepEnd(1, NOW_S - 3100)})
    memory = replace(begun, begun=(0, 1, 2), ended={1: StepEnd(137, NOW_S - 3100, out_of_memory=True)})
    assert part("RUNNING", begun, claimed=False) == ("PENDING", False)
    assert part("RUNNING", replace(begun, returned=(1,)), claimed=False) == ("COMPLETED", False)
    assert part("RUNNING", begun) == ("RUNNING", False)
    assert part("RUNNING", begun, outcome()) == ("COMPLETED", False)
    assert part("RUNNING", ended) == part("TIMEOUT", ended) == ("FAILED", False)
    assert part("RUNNING", memory) == ("OUT_OF_MEMORY", True)
    assert part("OUT_OF_MEMORY", replace(memory, ended={0: memory.ended[1]})) == ("FAILED", False)
    closed = replace(ended, ended={1: StepEnd(1, NOW_S - 3100, closed=True)})
    assert part("RUNNING", closed, outcome(ended_by="signal")) == ("CANCELLED", False)
    with_job = replace(ended, ended={1: StepEnd(0, NOW_S - 3005)})
    assert part("NODE_FAIL", with_job) == ("NODE_FAIL", False)
    went_on, at_last = (replace(ended, ended={1: StepEnd(1, NOW_S - 3005, begun=begun)}) for begun in (2, 3))
    assert [part("PREEMPTED", record) for record in (went_on, at_last)] == [("FAILED", False), ("PREEMPTED", False)]
    assert part("NODE_FAIL", with_job, outcome()) == ("COMPLETED", False)
    assert part("RUNNING", with_job, outcome(ended_by="signal")) == ("RUNNING", False)
    again = replace(ended, ended={1: StepEnd(75, NOW_S - 3100)})  # the first start of a job that was requeued
    assert part("RUNNING", again, outcome(ended_by="signal")) == ("FAILED", False)


@pytest.mark.parametrize(
    ("slurm", "likely_s", "most"),
    [
        ({}, [600.0, 900.0], 3),  # of an hour, less the time to save
        ({"gpus_per_run": 2}, [600.0, 900.0], 12),
        ({}, [600.0, None], 1),
        ({"gpus_per_run": 2}, [], 4),
        ({}, [5000.0], 1),
        ({"time": "7-0"}, [1.0], 1000),
        ({"runs_per_job": 2, "gpus_per_run": 2}, [600.0], 4),
    ],
)
def test_auto_takes_as_many_runs_as_likely_fit(slurm: dict[str, Any], likely_s: list[float | None], most: int) -> None:
    config = RunConfig.model_validate({"slurm": {"runs_per_job": "auto", **slurm}})
    assert (job_request.runs_per_job(config, likely_s), job_request.shares_jobs(config)) == (most, True)


@pytest.mark.parametrize(
    ("error", "runs", "joins"),
    [
        (("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"), True, True),
        (("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"), False, False),
        (("builtins.RuntimeError", "boom"), True, False),
    ],
)
def test_a_smaller_attempt_joins_the_job_while_it_runs_others(error: tuple[str, str], runs: bool, joins: bool) -> None:
    row = attempt_row(**SHARED)
    share, ended = JobShare(runs, began=True), job("FAILED", nodes="n1", started_s=NOW_S - 900, ended_s=NOW_S - 100)
    view = AttemptView(row, ended, outcomes=(outcome(rank_error(0, *error)),), claimed=True, share=share)
    run = run_row(generation=1, state=RunState.RUNNING)
    [submit] = of_kind(Submit, decided(run_view(view, run=run, retry=RetryConfig(backoff_s=0))))
    assert submit.joins == (row if joins else None)
