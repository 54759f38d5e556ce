"""What is recorded of what attempts do."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.records import Lease, RunStatus
from dscampaign.db.states import AttemptState, RunState
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.orchestrator.campaign.activity import doing
from dscampaign.orchestrator.campaign.status import CampaignStatus
from dscampaign.orchestrator.reconcile.record import activities
from dscampaign.orchestrator.reconcile.snapshot import AttemptView
from dscampaign.tests.support.policy_world import CAMPAIGN, NOW_S, attempt_row, job, run_row, run_view, snapshot


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


@pytest.mark.parametrize(("ts_s", "shown"), [(NOW_S - 9.0, "starting for 5 s"), (NOW_S - 4.0, "training")])
def test_steps_that_came_since_a_pass_end_the_start(ts_s: float, shown: str) -> None:
    values = {"state": RunState.RUNNING, "desired": "run", "phase": "start", "phase_since_s": NOW_S - 5.0, "ts_s": ts_s}
    run = RunStatus(**dict.fromkeys(RunStatus._fields) | values)  # type: ignore[arg-type]
    lease = Lease("reconciler:1", "h:1:x", 1, NOW_S)
    assert doing(run, CampaignStatus(CAMPAIGN, (run,), {}, lease, NOW_S)) == shown
