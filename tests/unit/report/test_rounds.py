"""Repeats that ran in rounds on a machine that drifts: pairs of a round find what repeats by themselves hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.statistics import Standing, order, rounds_differ
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted

SLOWER = (1.0, 1.4, 2.0)
"""The machine's steps in each round."""
BASE = Planted("base", tuple(0.100 * drift for drift in SLOWER))
FAST = Planted("fast", (0.0801, 0.0799 * 1.4, 0.0800 * 2.0))


def in_rounds(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    names = list(dict.fromkeys(run.params["label"] for run in runs))
    places = [run.repeat * len(names) + names.index(run.params["label"]) for run in runs]
    return [replace(run, span_s=(60.0 * place, 60.0 * place + 50.0)) for run, place in zip(runs, places, strict=True)]


def test_pairs_of_a_round_find_what_drift_hides(planted: Plant) -> None:
    runs = planted(BASE, FAST)
    conditions = conditions_of(in_rounds(runs))
    _, fast = compare_to_baseline(conditions, conditions[0])
    assert (fast.order, fast.rounds) == (Standing.FASTER, (0, 1, 2))
    assert fast.times_baseline
    assert fast.times_without_rounds
    assert (fast.times_baseline.low or 0) > 1.2
    assert (fast.times_without_rounds.low or 2) < 1.0
    conditions = conditions_of([replace(run, shared_job=f"7_{run.repeat}") for run in runs])  # jobs side by side
    _, fast = compare_to_baseline(conditions, conditions[0])
    assert (fast.order, fast.rounds) == (Standing.FASTER, (0, 1, 2))
    conditions = conditions_of(runs)  # side by side
    _, fast = compare_to_baseline(conditions, conditions[0])
    assert (fast.order, fast.rounds, fast.times_without_rounds) == (Standing.NOT_PROVEN, (), None)


@pytest.mark.parametrize(("drift", "truth"), [(0.0, 1.0), (0.2, 1.0), (0.0, 1.3), (0.2, 1.3)])
@pytest.mark.parametrize("conditions", [2, 8])
def test_errors_stay_rare_and_drift_hides_nothing(conditions: int, drift: float, truth: float) -> None:
    """Of 200 campaigns with three rounds: any wrong verdict in at most one of twenty."""
    rng, campaigns = np.random.default_rng(conditions), 200
    speed = np.array([1.0, truth, *[1.0] * conditions][:conditions])[:, None]
    unpaired = paired = wrong = 0
    for _ in range(campaigns):
        noise = 0.01 * rng.standard_normal((conditions, 3)) + drift * rng.standard_normal(3)
        speeds = [tuple(map(float, row)) for row in speed * np.exp(noise)]
        pairs = rounds_differ(speeds)
        orders = [order(one, speeds[0], conditions - 1, paired=pairs) for one in speeds[1:]]
        paired += orders[0] is Standing.FASTER
        unpaired += order(speeds[1], speeds[0], conditions - 1) is Standing.FASTER
        wrong += any(found in (Standing.FASTER, Standing.SLOWER) for found in orders[truth > 1.0 :])
    assert wrong <= 0.05 * campaigns + 3.0 * (0.05 * 0.95 * campaigns) ** 0.5
    if truth > 1.0:
        assert paired >= 0.95 * campaigns
        assert unpaired <= 0.5 * campaigns or not drift


@pytest.mark.parametrize(("conditions", "repeats"), [(2, 3), (8, 3), (2, 5)])
def test_equal_rounds_are_seldom_pairs(conditions: int, repeats: int) -> None:
    """Pairs chosen because few differences agree by luck would have intervals that are too narrow."""
    rng = np.random.default_rng(repeats)
    draws = np.exp(0.02 * rng.standard_normal((2000, conditions, repeats)))
    assert np.mean([rounds_differ(speeds) for speeds in draws]) <= 0.03
