"""Limits of a whole campaign: they hold back what would start, never what runs, and let go by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dscampaign.db.records import CampaignRow
from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.actions import SetRun, Submit
from dscampaign.orchestrator.reconcile.decide import decide, settled
from dscampaign.orchestrator.reconcile.snapshot import AttemptView, RunView, Snapshot
from dscampaign.tests.support.policy_world import (
    CAMPAIGN,
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


def ended() -> RunView:
    """A run whose attempt was preempted."""
    return run_view(ended_row(1, "preempted", last_step=5), checkpoint_step=5)


def used(*runs: RunView, limit: float) -> Snapshot:
    """A campaign that has used 10.5 GPU-hours."""
    return snapshot(*runs, campaign=limited(gpu_hours=limit), gpu_seconds=lambda: 10.5 * 3600)


def test_nothing_starts_beyond_the_gpu_hours() -> None:
    world = used(ended(), run_view(), limit=10)
    changes = of_kind(SetRun, decide(world))
    assert not of_kind(Submit, decide(world))
    assert [change.state for change in changes] == [RunState.HELD, RunState.HELD]
    assert "limits.gpu_hours = 10 is used up (10.5 h)" in changes[0].reason


def test_running_attempts_continue_beyond_the_gpu_hours() -> None:
    running = run_view(AttemptView(attempt_row(gpu_seconds=0.0), job("RUNNING")), run=run_row(generation=1))
    actions = decide(used(ended(), running, limit=10))
    assert not of_kind(Submit, actions)
    assert [change.state for change in of_kind(SetRun, actions)] == [RunState.HELD, RunState.RUNNING]


def held(view: RunView, world: Snapshot) -> RunView:
    """The run as the store keeps it after that pass."""
    [change] = of_kind(SetRun, decide(world))
    return replace(view, run=replace(view.run, state=change.state, reason=change.reason, cause=change.cause))


def test_more_gpu_hours_let_held_runs_go_on() -> None:
    view = held(ended(), used(ended(), limit=10))
    used_up = used(view, limit=10)
    assert decide(used_up) == []
    assert settled(used_up)
    assert of_kind(Submit, decide(used(view, limit=20)))


def test_limit_and_capacity_bound_the_active_attempts() -> None:
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
