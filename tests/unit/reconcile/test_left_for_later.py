"""What one pass does not look at, a later one does, whatever happens in between."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import bulk, open_runs
from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.records import RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.reconcile import observe, stored
from dscampaign.orchestrator.reconcile.lease import LeaseHolder, take_lease
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.orchestrator.reconcile.snapshot import RunView
from dscampaign.tests.support.world_on_disk import World


@pytest.mark.parametrize("hours", [2, -2], ids=["no pass for hours", "clock set back"])
def test_lines_that_show_late_are_read_after_hours_without_a_pass(
    world: World, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now, (reconciler, spool, whole) = Store.now, _lines_left_out(world)
    for _ in range(2):
        reconciler.run_pass()
    assert world.steps("depth-1") == [1]
    spool.write_text(whole)
    with monkeypatch.context() as away:
        away.setattr(Store, "write", _raise(StoreUnreachable("it is away")))
        with pytest.raises(StoreUnreachable):
            reconciler.run_pass()
    monkeypatch.setattr(Store, "now", lambda store, conn: now(store, conn) + 3600.0 * hours)
    reconciler.run_pass()
    reconciler.close()
    assert world.steps("depth-1") == [1, 2, 3]


def test_runs_that_cannot_begin_keep_none_behind_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "AT_ONCE", 3)
    world.record(matrix={"depth": [1, 2, 3, 4, 5]})
    reconciler, read = world.reconciler(), observe._run_view

    def away(run: RunRow, *further: Any) -> RunView:
        if run.name in ("depth-1", "depth-2"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(run, *further)

    with monkeypatch.context() as patch:
        patch.setattr(observe, "_run_view", away)
        for _ in range(10):
            with suppress(Unreachable):  # once none but these is left
                assert not reconciler.run_pass().settled
            world.run_jobs()
    assert [state for name, state in world.states().items() if name > "depth-2"] == ["completed"] * 3
    for _ in range(10):
        reconciler.run_pass()
        world.run_jobs()
    reconciler.close()
    assert set(world.states().values()) == {"completed"}


def test_a_watch_that_lost_its_lease_goes_on_although_an_attempt_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.record(matrix={"depth": [1]})
    world.run_pass()
    world.run_jobs("PREEMPTED", exit_code=None)
    world.run_pass()
    watch = world.reconciler().watch(sleep=lambda _: None)
    next(watch)
    unread = open_runs.unread_spools

    def stopped_meanwhile(*args: Any, **named: Any) -> Sequence[tuple[int, str]]:
        found = unread(*args, **named)
        monkeypatch.undo()
        world.expire_lease()
        take_lease(world.store, world.campaign, LeaseHolder("elsewhere", "1", "x"))
        with world.store.write() as conn:
            bulk.withdraw_attempts(conn, [world.attempts("depth-1")[-1].id])
        return found

    monkeypatch.setattr(open_runs, "unread_spools", stopped_meanwhile)
    assert isinstance(next(watch), StaleLease)


def _lines_left_out(world: World) -> tuple[Reconciler, Path, str]:
    """Runs the first of two runs: its spool shows one line of the three that are returned with it."""
    world.record(matrix={"depth": [1, 2]}, limits={"running": 1})
    reconciler = world.reconciler()
    reconciler.run_pass()
    world.run_jobs()
    spool = world.paths.run("depth-1").attempt(1).metrics
    whole = spool.read_text()
    spool.write_text(whole.splitlines(keepends=True)[0])
    return reconciler, spool, whole


def _raise(error: Exception) -> Any:
    def raising(*_: object, **__: object) -> None:
        raise error

    return raising
