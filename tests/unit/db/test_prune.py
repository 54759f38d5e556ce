"""What thinning leaves, on both databases: no figure that was exact changes, and no line comes back."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Table, delete

from dscampaign.db import gpu_queries, queries
from dscampaign.db import prune as module
from dscampaign.db.prune import Pruned, Retention, prune
from dscampaign.db.schema import step_metric
from dscampaign.db.states import AttemptState, RunState
from dscampaign.tests.support.worlds import World
from dscampaign.tests.unit.db.test_gpu_queries import counter, sampled, stepped

TENTH = Retention(10, 0.0)


def end(world: World, *attempts: int, ended_s: float = 1000.0, state: RunState = RunState.COMPLETED) -> None:
    with world.store.write() as conn:
        for attempt in attempts:
            queries.update_attempt(conn, attempt, state=AttemptState.COMPLETED, ended_s=ended_s)
        queries.update_run(conn, world.run_id, state=state)


def thin(world: World, rule: Retention = TENTH, **options: Any) -> Pruned:
    return prune(world.store, world.campaign_id, rule, **options)


def steps(world: World) -> list[int]:
    return [row.step for row in world.metrics()]


def losses(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    return [{"step": step, "ts": step, "loss": 5.0 - step / 1000, **more} for step in range(first, last + 1)]


def test_one_step_in_ten_stays_beside_the_first_and_the_last(world: World) -> None:
    world.write(*losses(1, 57))
    world.ingest()
    end(world, 1)
    assert thin(world) == Pruned(runs=1, rows=57 - 7)
    assert steps(world) == [1, 10, 20, 30, 40, 50, 57]


def test_lines_that_a_later_attempt_hid_stay_hidden(world: World) -> None:
    """The first was to step 57, the second began again at 41: at 57, both have a line, or none would be hidden."""
    second = world.attempt(2)
    world.write(*losses(1, 57))
    world.write(*losses(41, 83), {"step": 55, "eval_loss": 4.0}, generation=2)
    for generation in (1, 2):
        world.ingest(generation)
    before = {row.step: row.generation for row in world.metrics()}
    end(world, 1, second)
    thin(world)
    after = {row.step: row.generation for row in world.metrics()}
    assert after == {step: before[step] for step in after}
    assert list(after) == [1, 10, 20, 30, 40, 41, 50, 55, 57, 60, 70, 80, 83]


@pytest.mark.parametrize(
    ("rule", "state"),
    [(Retention(10, 86_400.0), RunState.COMPLETED), (TENTH, RunState.RUNNING), (TENTH, RunState.HELD)],
)
def test_runs_that_ended_lately_or_go_on_stay_whole(world: World, rule: Retention, state: RunState) -> None:
    world.write(*losses(1, 50))
    world.ingest()
    with world.store.read() as conn:
        now_s = world.store.now(conn)
    end(world, 1, ended_s=now_s - 60.0, state=state)
    assert thin(world, rule) == Pruned(0, 0)
    assert len(steps(world)) == 50


def test_a_retried_run_goes_on_where_it_was_thinned(world: World) -> None:
    world.write(*losses(1, 57))
    world.ingest()
    end(world, 1)
    thin(world)
    second = world.attempt(2)
    world.write(*losses(51, 60), generation=2)
    world.ingest(2)
    assert steps(world) == [1, 10, 20, 30, 40, 50, *range(51, 61)]
    end(world, second)
    thin(world)
    assert steps(world) == [1, 10, 20, 30, 40, 50, 51, 57, 60]


def test_a_spool_that_is_read_again_brings_nothing_back(world: World) -> None:
    world.write(*losses(1, 30))
    world.ingest()
    end(world, 1)
    thin(world)
    world.ingest()
    assert steps(world) == [1, 10, 20, 30]


def test_one_that_is_killed_is_finished_by_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled(world, counter([1000.0 + second for second in range(60)], lambda ts: ts))
    stepped(world, range(1, 61))
    end(world, 1)
    with world.store.read() as conn:
        before = gpu_queries.run_gpus(conn, world.run_id)
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(module, "delete", interrupted_by([step_metric]))
        thin(world)
    assert len(steps(world)) == 60
    assert thin(world, dry_run=True) == thin(world)
    assert steps(world) == [1, 10, 20, 30, 40, 50, 60]
    with world.store.read() as conn:
        assert gpu_queries.run_gpus(conn, world.run_id) == before
        assert len(list(gpu_queries.gpu_samples(conn, 1))) == 7
    assert thin(world) == Pruned(0, 0)


def interrupted_by(last: list[Table]) -> Any:
    """Delete from this table, and end at the next."""

    def interrupted(table: Table) -> Any:
        if not last:
            raise KeyboardInterrupt
        assert table is last.pop()
        return delete(table)

    return interrupted


def test_a_coarser_rule_thins_what_a_finer_rule_left(world: World) -> None:
    sampled(world, counter([1000.0 + second for second in range(61)], lambda ts: ts))
    stepped(world, range(1, 61))
    end(world, 1)
    thin(world)
    thin(world, Retention(20, 0.0))
    assert steps(world) == [1, 20, 40, 60]
    with world.store.read() as conn:
        assert [sample.ts_s for sample in gpu_queries.gpu_samples(conn, 1)] == [1000.0, 1020.0, 1040.0, 1060.0]
