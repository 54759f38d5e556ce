"""The window of a run: what a line stands for, and quantiles of what several steps took."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from dscampaign.db import queries
from dscampaign.db.records import METRIC_COLUMNS
from dscampaign.db.series import Series
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.timing import Lines, Timing, lines_of, quantiles, timing
from dscampaign.tests.support.planted import Planted, PlantStore, Try, flags_of, results_at


def series(steps: Sequence[int], step_s: Sequence[float], generation: int = 1) -> Series:
    figures = {name: array("d", [math.nan] * len(steps)) for name in ("ts_s", *METRIC_COLUMNS.values())}
    figures["step_time_s"] = array("d", step_s)
    return Series(array("q", steps), array("q", [generation] * len(steps)), figures, {})


def lines(steps: Sequence[int], step_s: Sequence[float]) -> Lines:
    return lines_of(series(steps, step_s), {1: 0})


def test_quantiles_are_those_of_each_value_as_often_as_it_stands() -> None:
    random = np.random.default_rng(7)
    shares = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    for size in (1, 2, 3, 20, 41):
        values, weights = random.uniform(0, 1, size), random.integers(1, 6, size)
        wanted = np.quantile(np.repeat(values, weights), shares)
        assert quantiles(values, weights, shares) == pytest.approx(tuple(wanted))


@pytest.mark.parametrize(("untimed", "counted"), [(1, 9), (3, 7), (5, 5), (20, 5)])
def test_the_spec_says_how_many_steps_do_not_count(untimed: int, counted: int) -> None:
    own = lines_of(series(range(1, 11), [1.0] * 10), {1: 0}, untimed=untimed)
    assert own.timed.tolist() == [False] * (10 - counted) + [True] * counted


def test_training_without_its_warm_up_is_told_apart_and_evened_out() -> None:
    step_s = [9.0, *([0.5] * 19), *([0.1] * 30)]
    own = lines(range(1, 51), step_s)
    assert own.seconds_of(1) == pytest.approx((3.0, 9.0 + 19 * 0.5))
    assert own.seconds_of(2) == (0.0, 0.0)
    assert float(own.steady_s().sum()) == pytest.approx(50 * 0.1)


@pytest.mark.parametrize(("steps", "step_s", "short"), [(119, 1.0, True), (120, 0.19, True), (120, 0.21, False)])
def test_a_window_is_short_below_either_limit(steps: int, step_s: float, short: bool) -> None:
    every = range(1, steps + 1)
    found = timing(series(every, [step_s] * steps), lines(every, [step_s] * steps))
    assert found
    assert found.steps == steps - 20
    assert found.window_s == pytest.approx((steps - 20) * step_s)
    assert found.short is short


def test_the_warm_up_goes_by_the_steps_that_the_attempt_made_not_by_those_that_are_left() -> None:
    """The first attempt made 60 steps, all but 10 of them again: these compiled."""
    kept = series(range(1, 11), [9.0] * 10), series(range(11, 101), [9.0] * 20 + [0.1] * 70, generation=2)
    whole = Series(*(kept[0].step + kept[1].step, kept[0].generation + kept[1].generation), {}, {})
    whole.figures.update({name: values + kept[1].figures[name] for name, values in kept[0].figures.items()})
    own = lines_of(whole, {1: 0, 2: 10}, last_steps={1: 60, 2: 100})
    assert own.step[own.timed].tolist() == list(range(31, 101))
    found = timing(whole, own)
    assert found
    assert (found.step_s, found.p99_s) == pytest.approx((0.1, 0.1))
    assert found.warm_up_steps == 30


def test_a_line_that_reaches_back_into_the_warm_up_is_left_out() -> None:
    assert lines_of(series([25, 50, 75, 100], [1.0, 0.1, 0.1, 0.1]), {1: 0}, 25).timed.tolist() == [False] + [True] * 3
    assert lines_of(series([50], [1.0]), {1: 0}, 50).timed.tolist() == [True]


def printed(times: Sequence[float], within_s: float, steps: Sequence[int] = ()) -> Timing | None:
    """The speed of lines that were seen at these times, the first of them that of step 1."""
    own = series(steps or range(1, len(times) + 1), [math.nan] * len(times))
    own.figures["ts_s"] = array("d", times)
    return timing(own, lines_of(own, {1: 0}, within_s=within_s))


def test_lines_that_were_seen_late_tell_no_speed_over_a_short_time() -> None:
    """20 steps of 50 ms, read every two seconds: the last one alone was seen two seconds after the one before."""
    seen = [*([math.nan] * 18), 100.0, 102.021]
    assert printed(seen, 2.5) is None
    assert printed(seen, 0.25) is None


def test_the_time_of_a_step_is_that_between_lines_far_apart_by_the_steps_between_them() -> None:
    """300 steps of 50 ms, of which every third line has a time, up to 0.1 s late."""
    late = np.random.default_rng(5).uniform(0, 0.1, 300)
    seen = [0.05 * step + late[step] if step % 3 == 0 else math.nan for step in range(300)]
    found = printed(seen, 0.25)
    assert found
    assert found.step_s == pytest.approx(0.05, rel=0.02)
    assert found.p99_s < 0.055
    assert 0.05 <= found.clock_error <= 0.1
    assert found.by_clock


def test_the_emptying_of_a_buffer_at_the_end_tells_no_time() -> None:
    """Blocks of 50 lines of 0.1 s; the last one comes when the script ends, a minute after its last step."""
    seen = [0.1 * step if step % 50 == 49 else math.nan for step in range(500)] + [math.nan] * 20 + [110.0]
    found = printed(seen, 0.25)
    assert found
    assert found.window_s < 50
    assert (found.step_s, found.p99_s) == pytest.approx((0.1, 0.1))


def test_a_line_left_of_an_earlier_attempt_takes_no_time_of_the_later_one() -> None:
    """The second attempt went back to step 10, and its line of step 30 was lost."""
    own = series(range(1, 61), [math.nan] * 60)
    own.generation[:] = array("q", [1 if step <= 10 or step == 30 else 2 for step in own.step])
    own.figures["ts_s"] = array("d", [100.0 * own.generation[at] + own.step[at] for at in range(60)])
    found = lines_of(own, {1: 0, 2: 10}).step_s
    assert found[30] == pytest.approx(1.0)
    assert np.nanmax(found) == pytest.approx(1.0)


def first_run(url: str) -> MeasuredRun:
    return results_at(url).runs[0]


def test_lost_lines_are_missed_though_other_steps_were_made_again(planted_url: PlantStore) -> None:
    tries = (Try(0, 60, "node"), Try(50, 100))
    run = first_run(planted_url(Planted("both", drop=frozenset(range(20, 30)), tries=tries)))
    assert run.quality.received == 90


def test_a_script_that_prints_every_tenth_step_need_not_print_the_last(planted_url: PlantStore) -> None:
    silent = frozenset(step for step in range(1, 101) if step % 10 != 1)
    assert not any("steps reported" in flag for flag in flags_of(first_run(planted_url(Planted("91", drop=silent)))))


SELDOM = {"log_every": 10}
SILENT = frozenset(step for step in range(1, 201) if step % 10)


def test_an_attempt_that_went_on_between_two_lines_has_lost_none(planted_url: PlantStore) -> None:
    """Lines 10 to 150 of the first attempt, from its step 145 on 150 to 200 of the second."""
    tries = (Try(0, 155, "node"), Try(145, 200))
    run = first_run(planted_url(Planted("seldom", steps=200, drop=SILENT, train=SELDOM, tries=tries)))
    assert run.quality.received == 200
    assert not any("steps reported" in flag for flag in flags_of(run))
    assert run.timing
    assert run.timing.steps + run.timing.warm_up_steps == 200
    assert run.cost.training == pytest.approx(2 * run.timing.window_s)


def test_a_run_begins_with_its_first_attempt_that_started(planted_url: PlantStore) -> None:
    """The first was cancelled in the queue."""
    url = planted_url(Planted("queued", tries=(Try(0, 0, "cancelled"), Try(0, 100))))
    with Store.open(url).write() as conn:
        first, second = queries.attempts(conn, 1, run_id=1)
        queries.update_attempt(conn, first.id, started_s=None)
    assert first_run(url).span_s == (second.started_s, second.ended_s)
