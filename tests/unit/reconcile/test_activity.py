"""What is recorded of what attempts do."""

from __future__ import annotations

from typing import Any

from dscampaign.db.states import AttemptState
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.orchestrator.reconcile.record import activities
from dscampaign.orchestrator.reconcile.snapshot import AttemptView
from dscampaign.tests.support.policy_world import NOW_S, attempt_row, job, run_row, run_view, snapshot


def seen(attempt: AttemptView) -> tuple[Any, ...] | None:
    changed = activities(snapshot(run_view(attempt, run=run_row(generation=1))))
    return next((tuple(now.values()) for now in changed.values()), None)


def beat(phase: str, step: int, phase_s: float | None = 4.0) -> Heartbeat:
    return Heartbeat(NOW_S, "n1", 0.0, phase, {0: RankProgress(step, phase)}, phase_s)


def test_the_phase_of_an_attempt_is_that_of_its_slowest_rank() -> None:
    row, running = attempt_row(state=AttemptState.RUNNING), job("RUNNING", nodes="n[1-2]")
    assert seen(AttemptView(row, running)) == ("start", NOW_S, "n[1-2]")
    both = (beat("train", 8), beat("eval", 7, 30.0))
    assert seen(AttemptView(row, running, heartbeats=both)) == ("eval", NOW_S - 30.0, "n[1-2]")
    old = (beat("train", 8, None),)
    assert seen(AttemptView(row, running, heartbeats=old)) == ("train", NOW_S, "n[1-2]")


def test_an_attempt_in_the_queue_does_nothing_and_one_that_slurm_ends_is_ending() -> None:
    row = attempt_row(state=AttemptState.RUNNING, phase="train", phase_since_s=5.0)
    assert seen(AttemptView(row, job("PENDING"))) == ("", None, "")
    ending = AttemptView(row, job("COMPLETING", nodes="n1"), heartbeats=(beat("train", 8),))
    assert seen(ending) == ("end", NOW_S, "n1")
    assert seen(AttemptView(row)) is None  # who does not see its job knows nothing new
