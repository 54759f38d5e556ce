"""Limits of a whole campaign: they hold back what would start, never what runs, and let go by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.records import CampaignRow
from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.actions import SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide, gpu_hours, settled
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, BrokenRun, RunView, Snapshot
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.tests.support.policy_world import (
    CAMPAIGN,
    NOW_S,
    attempt_row,
    ended_row,
    job,
    of_kind,
    run_row,
    run_view,
    snapshot,
)


def limited(**limits: Any) -> CampaignRow:
    """The campaign with these limits."""
    return replace(CAMPAIGN, limits=limits)


def spent(hours: float, kind: str = "preempted") -> RunView:
    """A run with one ended attempt that used so many GPU-hours."""
    return run_view(ended_row(1, kind, gpu_seconds=3600 * hours, last_step=5), checkpoint_step=5)


def test_every_attempt_counts_failed_and_running_ones_too() -> None:
    running = attempt_row(1, started_s=NOW_S - 1800, world_size=8)
    runs = (spent(2, "crash"), spent(3, "completed"), run_view(running), run_view(attempt_row(1, started_s=None)))
    assert gpu_hours(snapshot(*runs)) == pytest.approx(2 + 3 + 4)


def test_a_run_that_cannot_be_judged_has_used_what_it_used() -> None:
    ended, running = ended_row(1, "crash", gpu_seconds=3600), attempt_row(2, started_s=NOW_S - 1800, world_size=8)
    broken = BrokenRun(run_row(), running, None, "odd", attempts=(ended, running))
    assert gpu_hours(replace(snapshot(spent(2)), broken=(broken,))) == pytest.approx(2 + 1 + 4)


def test_a_node_whose_clock_is_days_behind_uses_up_no_gpu_hours() -> None:
    running = attempt_row(1, created_s=NOW_S - 1800, started_s=NOW_S - 2 * 86_400, world_size=8)
    assert gpu_hours(snapshot(run_view(running))) == pytest.approx(4)


@pytest.mark.parametrize(
    ("asked", "hours"), [({"gpus_per_node": "0"}, 0), ({"gres": "gpu:8"}, 4), ({"gpus_per_node": "1"}, 0.5)]
)
def test_what_counts_is_gpus_and_not_ranks(asked: dict[str, str], hours: float) -> None:
    """As `plan` does: these have two ranks a node."""
    view = run_view(ended_row(1, "preempted", gpu_seconds=3600), slurm=SlurmConfig.model_validate(asked))
    assert gpu_hours(snapshot(view)) == pytest.approx(hours)


def test_nothing_starts_beyond_the_gpu_hours_and_the_run_says_why() -> None:
    world = snapshot(spent(10.5), run_view(), campaign=limited(gpu_hours=10))
    changes = of_kind(SetRun, decide(world))
    assert not of_kind(Submit, decide(world))
    assert [change.state for change in changes] == [RunState.HELD, RunState.HELD]
    assert "limits.gpu_hours = 10 is used up (10.5 h)" in changes[0].reason


def test_what_runs_goes_on_beyond_the_gpu_hours() -> None:
    running = run_view(AttemptView(attempt_row(gpu_seconds=0.0), job("RUNNING")), run=run_row(generation=1))
    actions = decide(snapshot(spent(10.5), running, campaign=limited(gpu_hours=10)))
    assert not of_kind(Submit, actions)
    assert [change.state for change in of_kind(SetRun, actions)] == [RunState.HELD, RunState.RUNNING]


def held(view: RunView, world: Snapshot) -> RunView:
    """The run as the store keeps it after that pass."""
    [change] = of_kind(SetRun, decide(world))
    return replace(view, run=replace(view.run, state=change.state, reason=change.reason))


def test_more_gpu_hours_let_held_runs_go_on() -> None:
    view = held(spent(10.5), snapshot(spent(10.5), campaign=limited(gpu_hours=10)))
    used_up = snapshot(view, campaign=limited(gpu_hours=10))
    assert decide(used_up) == []
    assert settled(used_up)
    assert of_kind(Submit, decide(snapshot(view, campaign=limited(gpu_hours=20))))


def test_so_many_attempts_run_at_once_as_the_limit_or_the_capacity_says() -> None:
    runs = [run_view(run=run_row(id=i, name=f"r{i}")) for i in range(1, 6)]
    assert len(of_kind(Submit, decide(snapshot(*runs, campaign=limited(running=2))))) == 2
    assert len(of_kind(Submit, decide(snapshot(*runs, campaign=limited(running=3), capacity=1)))) == 1


def test_a_full_folder_holds_everything_back_until_it_takes_files() -> None:
    failed = run_view(ended_row(1, "storage", reason="No space left on device"))
    fresh = run_view(run=run_row(id=2, name="r2", state=RunState.QUEUED))
    unknown = decide(snapshot(failed))
    assert not of_kind(Submit, unknown)
    assert of_kind(SetRun, unknown)[0].state is RunState.PENDING
    full = decide(snapshot(failed, fresh, storage="No space left on device"))
    assert not of_kind(Submit, full)
    assert {change.state for change in of_kind(SetRun, full)} == {RunState.PENDING}
    assert "waits until the campaign's folder is writable: No space left" in of_kind(SetRun, full)[-1].reason
    assert len(of_kind(Submit, decide(snapshot(failed, fresh, storage="")))) == 2
