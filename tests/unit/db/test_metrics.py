"""What a reader sees after rollbacks, retries and late lines."""

import math

from dscampaign.db import metrics, queries
from dscampaign.db.records import StepTimes
from dscampaign.tests.support.worlds import World


def _losses(world: World) -> dict[int, float | None]:
    return {row.step: row.loss for row in world.metrics()}


def test_after_a_rollback_each_step_comes_from_the_highest_attempt(world: World) -> None:
    world.attempt(2)
    world.write(*({"step": step, "loss": 1.0, "first": 1} for step in range(1, 8)))
    world.write(*({"step": step, "loss": 2.0} for step in range(5, 7)), generation=2)
    world.ingest(2)
    world.ingest(1)  # the zombie's lines come last and change nothing
    assert _losses(world) == {1: 1, 2: 1, 3: 1, 4: 1, 5: 2, 6: 2, 7: 1}
    assert [row.generation for row in world.metrics()] == [1, 1, 1, 1, 2, 2, 1]
    assert [row.extra for row in world.metrics()][3:6] == [{"first": 1}, {}, {}]


def test_attempts_of_another_configuration_do_not_count(world: World) -> None:
    world.write({"step": 1, "loss": 1.0})
    world.ingest()
    world.attempt(2, config_hash="h2")
    world.write({"step": 1, "loss": 2.0}, generation=2)
    world.ingest(2)
    assert _losses(world) == {1: 1}
    with world.store.write() as conn:
        assert queries.update_run(conn, world.run_id, config_hash="h2")
    assert _losses(world) == {1: 2}


def test_the_newest_figures_are_the_highest_attempts(world: World) -> None:
    world.attempt(2)
    world.write({"step": 9, "ts": 9, "loss": 1.0, "eval_loss": 4.0})
    world.ingest()
    assert (world.latest().generation, world.latest().step) == (1, 9)
    world.write({"step": 5, "ts": 10, "loss": 2.0}, generation=2)
    world.ingest(2)
    found = world.latest()
    assert (found.generation, found.step, found.ts_s, found.loss) == (2, 5, 10, 2.0)
    assert found.eval_loss is None  # rolled back with the rest
    world.write({"step": 12, "loss": 0.5})
    world.ingest()  # a zombie does not move a run
    assert (world.latest().generation, world.latest().step) == (2, 5)


def test_the_newest_figures_keep_values_that_a_later_line_lacks(world: World) -> None:
    world.write({"step": 1, "loss": 3.0, "eval_loss": math.nan}, {"step": 2, "loss": 2.0})
    world.ingest()
    world.write({"step": 3, "loss": 1.0, "mem_reserved": 7.0}, {"step": 3, "tokens_per_s": 5.0})
    world.ingest()
    found = world.latest()
    assert (found.step, found.loss, found.mem_reserved_gb, found.tokens_per_s) == (3, 1.0, 7.0, 5.0)
    assert found.eval_loss is not None
    assert math.isnan(found.eval_loss)
    world.write({"step": 4, "loss": math.nan, "eval_loss": 2.5})
    world.ingest()
    found = world.latest()
    assert found.eval_loss == 2.5
    assert found.loss is not None
    assert math.isnan(found.loss)


def _step_times(world: World) -> StepTimes:
    with world.store.read() as conn:
        return metrics.step_times(conn, world.run_id)


def test_step_times_of_earlier_attempts_fill_up_those_of_the_newest(world: World) -> None:
    world.write(*({"step": step, "step_time": 2.0} for step in range(1, 31)))
    world.ingest()
    world.attempt(2)
    world.write({"step": 31, "step_time": 9.0}, {"step": 32, "step_time": math.nan}, generation=2)
    world.ingest(2)
    assert _step_times(world) == StepTimes(9.0, 31, 9.0)
    world.attempt(3, config_hash="h2")
    world.write({"step": 1, "step_time": 50.0}, generation=3)
    world.ingest(3)
    assert _step_times(world) == StepTimes(9.0, 31, 9.0)  # another experiment


def test_a_script_without_step_times_is_timed_by_its_lines(world: World) -> None:
    world.write({"step": 1, "ts": 100.0}, {"step": 2, "ts": 103.0}, {"step": 6, "ts": 111.0}, {"step": 7, "ts": 50.0})
    world.ingest()
    # 3 s, and 4 steps in 8 s; a clock that was set back proves nothing
    assert _step_times(world) == StepTimes(3.0, 2, 8.0)
