"""Verdicts over whole campaigns whose truth is known are wrong as seldom as docs/results.md has it."""

from __future__ import annotations

import math
from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dscampaign.benchmarks.statistics_rates import SIZES, any_loss, any_order, best_holds, campaigns
from dscampaign.db.series import Series
from dscampaign.orchestrator.report.compare.statistics import LOSS_MARGIN_NATS, Standing, order
from dscampaign.orchestrator.report.compare.workloads import common_loss, seconds_to_loss
from dscampaign.orchestrator.report.measure.losses import curve_of
from dscampaign.orchestrator.report.measure.timing import lines_of

ERROR = 0.05
NUMBER = {2: 400, 8: 300, 24: 150}
DEFAULT = ((2, 5), (8, 3))
CASES = [pytest.param(*size, marks=() if size in DEFAULT else pytest.mark.nightly) for size in SIZES]
BY_REPEATS = pytest.mark.parametrize("repeats", [3, pytest.param(5, marks=pytest.mark.nightly)])


def within(wrong: int, number: int, rate: float = ERROR) -> bool:
    """Whether so many are what chance makes of the rate, to three standard errors."""
    return wrong <= number * rate + 3.0 * math.sqrt(number * rate * (1.0 - rate))


@pytest.mark.parametrize(("conditions", "repeats"), CASES)
def test_of_equal_conditions_none_is_faster_and_of_worse_ones_none_equivalent(conditions: int, repeats: int) -> None:
    number = NUMBER[conditions]
    found = list(campaigns(conditions, repeats, number, worse=1.001 * LOSS_MARGIN_NATS))
    assert within(sum(any_order(one, Standing.FASTER, Standing.SLOWER) for one in found), number)
    assert within(sum(not best_holds(one) for one in found), number)
    assert within(sum(any_loss(one, Standing.EQUAL) for one in found), number)
    assert within(sum(any_loss(one, Standing.BETTER) for one in found), number)


@BY_REPEATS
def test_noise_that_differs_between_conditions_makes_no_difference(repeats: int) -> None:
    cv, pair_sd = [0.005, *[0.04, 0.01] * 4][:8], [0.0005, *[0.01, 0.001] * 4][:8]
    found = list(campaigns(8, repeats, 300, cv=cv, worse=1.001 * LOSS_MARGIN_NATS, pair_sd=pair_sd))
    assert within(sum(any_order(one, Standing.FASTER, Standing.SLOWER) for one in found), 300)
    assert within(sum(any_loss(one, Standing.EQUAL) for one in found), 300)


@BY_REPEATS
@pytest.mark.parametrize("worse", [0.02, 0.05])
def test_what_is_worse_in_every_pair_is_not_equivalent_because_seeds_differ(worse: float, repeats: int) -> None:
    found = list(campaigns(2, repeats, 400, worse=worse, pair_sd=0.001))
    assert not any(any_loss(one, Standing.EQUAL) for one in found)
    assert sum(any_loss(one, Standing.WORSE) for one in found) >= 0.8 * 400


@pytest.mark.parametrize(("conditions", "repeats"), CASES)
def test_what_is_there_is_shown(conditions: int, repeats: int) -> None:
    """As docs/results.md has it: 30 % of speed at 1 % of noise, equal losses whose pairs differ by a twentieth."""
    speed = [1.0, 1.3, *[1.0] * conditions][:conditions]
    found = list(campaigns(conditions, repeats, 100, speed=speed, cv=0.01, pair_sd=0.0003))
    assert sum(one[1].order == Standing.FASTER for one in found) >= 95
    assert sum(one[1].loss.verdict == Standing.EQUAL for one in found) >= 95


def run_of(losses: NDArray[np.float64], step_s: float) -> Any:
    """A run, as far as its curve goes."""
    steps = losses.size
    nothing = array("d", [math.nan] * steps)
    names = ("ts_s", "eval_loss", "tokens_per_s", "mfu")
    figures = {"loss": array("d", losses), "step_time_s": array("d", [step_s] * steps), **dict.fromkeys(names, nothing)}
    series = Series(array("q", range(1, steps + 1)), array("q", [1] * steps), figures, {})
    return SimpleNamespace(curve=curve_of(series, lines_of(series, {1: 0})))


CURVES = {
    "power": lambda steps: 2.0 + 4.0 * steps**-0.5,
    "exponential": lambda steps: 2.0 + np.exp(-3.0 * steps / steps.size),
    "straight": lambda steps: 3.0 - 0.8 * steps / steps.size,
}


@pytest.mark.parametrize("shape", CURVES)
@BY_REPEATS
@pytest.mark.parametrize("noise", [pytest.param(0.01, marks=pytest.mark.nightly), 0.03])
def test_noise_brings_no_curve_to_a_loss_earlier_or_later(shape: str, repeats: int, noise: float) -> None:
    """Equal true curves, of which one has three times the noise."""
    rng, number = np.random.default_rng(repeats), 40
    truth = CURVES[shape](np.arange(1.0, 301.0))
    ahead, verdicts = [], []
    for _ in range(number):
        both = [
            [
                run_of(truth + sd * rng.standard_normal(300), 0.1 * math.exp(0.01 * rng.standard_normal()))
                for _ in range(repeats)
            ]
            for sd in (noise, 3 * noise)
        ]
        conditions: list[Any] = [SimpleNamespace(counted=runs) for runs in both]
        target = common_loss(conditions)
        assert target is not None
        found = [[1.0 / seconds for run in runs if (seconds := seconds_to_loss(run, target))] for runs in both]
        if all(len(scores) == repeats for scores in found):
            ahead.append(np.log(found[1]).mean() - np.log(found[0]).mean())
            verdicts.append(order(found[1], found[0]))
    assert len(ahead) >= 0.75 * number
    assert abs(np.mean(ahead)) <= 0.02 + 3.0 * np.std(ahead) / math.sqrt(len(ahead))
    assert within(sum(one in (Standing.FASTER, Standing.SLOWER) for one in verdicts), len(verdicts))


def test_where_noise_hides_when_a_loss_was_reached_nothing_is_known() -> None:
    rng = np.random.default_rng(0)
    flat = [run_of(3.0 + 0.1 * rng.standard_normal(300), 0.1) for _ in range(20)]
    assert sum(seconds_to_loss(run, 3.0) is not None for run in flat) <= 5
    falling = run_of(np.linspace(4.0, 2.0, 300), 0.1)
    assert seconds_to_loss(falling, 3.0) == pytest.approx(15.0, rel=0.02)
    assert seconds_to_loss(falling, 1.0) is None
