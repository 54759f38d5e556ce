"""A run's steps as columns: what the rows say, on both databases."""

from __future__ import annotations

import math

from dscampaign.db import queries
from dscampaign.db.series import Series, extra_highest, final_speeds, run_series
from dscampaign.db.states import RunState
from dscampaign.tests.support.worlds import World


def series(world: World) -> Series:
    with world.store.read() as conn:
        return run_series(conn, world.run_id)


def test_columns_equal_rows(world: World) -> None:
    world.attempt(2)
    world.write(*({"step": step, "ts": step, "loss": float(step)} for step in range(1, 8)))
    world.write(*({"step": step, "ts": step, "loss": 100.0 + step} for step in range(5, 10)), generation=2)
    world.ingest()
    world.ingest(2)
    found, rows = series(world), world.metrics()
    assert list(found.step) == [row.step for row in rows] == list(range(1, 10))
    assert list(found.generation) == [row.generation for row in rows]
    assert list(found.figures["loss"]) == [row.loss for row in rows]
    assert list(found.figures["ts_s"]) == [row.ts_s for row in rows]
    assert len(found) == 9


def test_not_finite_and_not_reported_differ(world: World) -> None:
    world.write('{"step": 1, "loss": NaN, "grad_norm": Infinity}', {"step": 2, "loss": 2.0}, '{"step": 3, "loss": NaN}')
    world.ingest()
    found = series(world)
    assert [math.isnan(value) for value in found.figures["loss"]] == [True, False, True]
    assert all(math.isnan(value) for value in found.figures["eval_loss"])
    assert found.non_finite["loss"] == 2
    assert "eval_loss" not in found.non_finite


def test_the_highest_of_a_count_is_over_all_attempts(world: World) -> None:
    world.attempt(2)
    world.attempt(3, config_hash="h2")
    world.write({"step": 1, "skipped_steps": 1.0}, {"step": 2, "skipped_steps": 3.0})
    world.write({"step": 2, "skipped_steps": 2.0}, generation=2)
    world.write({"step": 2, "skipped_steps": 9.0}, generation=3)  # of another configuration
    for generation in (1, 2, 3):
        world.ingest(generation)
    with world.store.read() as conn:
        assert extra_highest(conn, world.campaign_id, "skipped_steps") == {world.run_id: 3.0}
        assert extra_highest(conn, world.campaign_id, "other") == {}


def test_steps_of_an_earlier_configuration_do_not_count(world: World) -> None:
    world.attempt(2, config_hash="h2")
    world.write({"step": 1, "loss": 5.0}, {"step": 2, "loss": 4.0})
    world.write({"step": 1, "loss": 9.0}, {"step": 3, "loss": 9.0}, generation=2)
    world.ingest()
    world.ingest(2)
    found = series(world)
    assert (list(found.step), list(found.generation), list(found.figures["loss"])) == ([1, 2], [1, 1], [5.0, 4.0])


def test_a_completed_run_without_a_report_has_the_median_speed_of_its_last_half(world: World) -> None:
    world.write(
        *({"step": step, "tokens_per_s": 100.0 if step < 10 else 1.0 * step, "mfu": 0.25} for step in range(20))
    )
    world.ingest()
    with world.store.write() as conn:
        assert final_speeds(conn, world.campaign_id, [world.run_id]) == {}
        queries.update_run(conn, world.run_id, state=RunState.COMPLETED)
        assert final_speeds(conn, world.campaign_id, []) == {}
        assert final_speeds(conn, world.campaign_id, [world.run_id]) == {
            world.run_id: {"tokens_per_s": 14.5, "mfu": 0.25}
        }
