"""The window of a run: what a line stands for, and quantiles of what several steps took."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from dscampaign.db.records import METRIC_COLUMNS
from dscampaign.db.series import Series
from dscampaign.jobs.trainer.speed import quartiles_of
from dscampaign.orchestrator.report.timing import Lines, lines_of, quantiles, timing


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


def test_a_report_and_the_trainer_have_the_same_quartiles() -> None:
    step_s = np.random.default_rng(3).uniform(0.05, 0.11, 20)
    found = quantiles(step_s, np.ones(20, np.int64), (0.25, 0.5, 0.75))
    assert found == pytest.approx(quartiles_of(step_s.tolist()))


def test_training_without_its_warm_up_is_told_apart_and_evened_out() -> None:
    step_s = [9.0, *([0.5] * 19), *([0.1] * 30)]
    own = lines(range(1, 51), step_s)
    assert own.seconds_of(1) == pytest.approx((3.0, 9.0 + 19 * 0.5))
    assert own.seconds_of(2) == (0.0, 0.0)
    assert float(own.steady_s().sum()) == pytest.approx(50 * 0.1)


def test_a_run_of_one_step_has_no_steady_time() -> None:
    assert lines([1], [math.nan]).steady_s().tolist() == [0.0]


@pytest.mark.parametrize(("steps", "step_s", "short"), [(119, 1.0, True), (120, 0.19, True), (120, 0.21, False)])
def test_a_window_is_short_below_either_limit(steps: int, step_s: float, short: bool) -> None:
    every = range(1, steps + 1)
    found = timing(series(every, [step_s] * steps), lines(every, [step_s] * steps))
    assert found
    assert found.steps == steps - 20
    assert found.window_s == pytest.approx((steps - 20) * step_s)
    assert found.short is short
