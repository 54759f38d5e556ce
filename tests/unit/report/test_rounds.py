"""Repeats that ran in blocks on a machine that drifts: pairs of a block find what repeats by themselves hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dscampaign.benchmarks.paired_intervals import packed, rates
from dscampaign.benchmarks.statistics_rates import any_order, campaigns
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, pairing_text
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted, beside_first

SLOWER = (1.0, 1.4, 2.0)
"""The machine's steps in each round."""
BASE = Planted("base", tuple(0.100 * drift for drift in SLOWER))
FAST = Planted("fast", (0.0801, 0.0799 * 1.4, 0.0800 * 2.0))
FOUR = (*SLOWER, 1.7)


def of_a_night(*cases: object) -> list[object]:
    """Cases that take long and resemble those of every day."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]


def in_rounds(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    names = list(dict.fromkeys(run.params["label"] for run in runs))
    places = [run.repeat * len(names) + names.index(run.params["label"]) for run in runs]
    return [replace(run, span_s=(60.0 * place, 60.0 * place + 50.0)) for run, place in zip(runs, places, strict=True)]


def compared(runs: Sequence[MeasuredRun]) -> BaselineComparison:
    return beside_first(runs)[1]


def test_pairs_of_a_round_find_what_drift_hides(planted: Plant) -> None:
    runs = planted(BASE, FAST)
    fast = compared(in_rounds(runs))
    assert (fast.order, fast.paired_by, len(fast.blocks)) == (Standing.FASTER, "round", 3)
    assert fast.times_baseline
    assert fast.times_unpaired
    assert fast.paired_width
    assert (fast.times_baseline.low or 0) > 1.2
    assert (fast.times_unpaired.low or 2) < 1.0
    assert pairing_text([fast]) == f"paired by round: intervals {fast.paired_width:.2g} × as wide"
    fast = compared([replace(run, shared_job=f"7_{run.repeat}") for run in runs])  # jobs side by side
    assert (fast.order, fast.paired_by) == (Standing.FASTER, "job")
    assert (fast.paired_width or 1.0) < 0.1
    fast = compared(runs)  # side by side
    assert (fast.order, fast.paired_by, fast.times_unpaired) == (Standing.NOT_PROVEN, "", None)
    assert not compared([replace(run, span_s=run.span_s if run.repeat else None) for run in in_rounds(runs)]).paired_by


def test_runs_on_two_nodes_or_in_two_jobs_are_no_pair(planted: Plant) -> None:
    runs = planted(
        Planted("base", tuple(0.100 * drift for drift in FOUR), (3.0,) * 4),
        Planted("fast", tuple(0.080 * drift * (1.0 + 0.001 * place) for place, drift in enumerate(FOUR)), (3.0,) * 4),
    )
    moved = [
        replace(run, hosts=("n2",)) if (run.repeat, run.params["label"]) == (1, "fast") else run
        for run in in_rounds([replace(run, hosts=("n1",)) for run in runs])
    ]
    assert (compared(moved).paired_by, _pairs(moved)) == ("round", 3)
    again = [
        replace(run, shared_job="8" if (run.repeat, run.params["label"]) == (2, "fast") else f"7_{run.repeat}")
        for run in runs
    ]
    assert (compared(again).paired_by, _pairs(again)) == ("job", 3)
    apart = [replace(run, hosts=(f"n{run.params['label']}",)) for run in in_rounds(runs)]
    assert compared(apart).paired_by == ""


def _pairs(runs: Sequence[MeasuredRun]) -> int:
    base, fast = beside_first(runs)
    assert fast.times_baseline
    assert fast.times_baseline.repeats == len(set(base.blocks) & set(fast.blocks))
    return fast.times_baseline.repeats


@pytest.mark.parametrize(("conditions", "blocks"), [(3, 5), (8, 3), *of_a_night((2, 3), (5, 3), (5, 8))])
def test_intervals_over_blocks_hold_the_truth_as_often_as_they_promise(conditions: int, blocks: int) -> None:
    """The same over 500 campaigns of each size is `benchmarks/paired_intervals.py`."""
    rng, number = np.random.default_rng((conditions, blocks)), 150
    found = rates(packed(rng, conditions, blocks) for _ in range(number))
    assert abs(found["paired holds"] - 0.95) <= 3.0 * (0.05 * 0.95 / (number * found["pairs"])) ** 0.5
    assert found["paired width"] < 0.3 * found["unpaired width"]


def test_drift_within_a_job_counts_for_no_condition() -> None:
    """Four minutes a run: the last of eight conditions runs at 86 % of the first one's speed."""
    rng = np.random.default_rng(1)
    found = [packed(rng, 8, 3, 240.0) for _ in range(60)]
    holds = rates(iter(found))
    assert holds["paired holds"] >= 0.9
    assert holds["paired width"] < 0.2  # 0.55 with the drift


def test_in_a_fixed_order_a_difference_is_no_drift(planted: Plant) -> None:
    """All conditions of each round run in the same order: the later, the slower."""
    luck = ((0, 1, 2), (1, 0, 1), (2, 1, 0), (0, 2, 1))
    kinds = [
        Planted(
            f"c{place}",
            tuple(
                0.1 * (1.0 + 0.2 * place) * drift * (1.0 + 0.002 * own)
                for drift, own in zip(SLOWER, lucky, strict=True)
            ),
        )
        for place, lucky in enumerate(luck)
    ]
    found = beside_first(in_rounds(planted(*kinds)))[1:]
    ratios = [one.times_baseline.value for one in found if one.paired_by and one.times_baseline]
    assert ratios == [pytest.approx(1.0 / (1.0 + 0.2 * place), rel=0.01) for place in (1, 2, 3)]


@pytest.mark.parametrize(("drift", "truth"), [(0.0, 1.0), (0.2, 1.0), (0.0, 1.3), (0.2, 1.3)])
@pytest.mark.parametrize("conditions", [8, *of_a_night(2)])
def test_errors_stay_rare_and_drift_hides_nothing(conditions: int, drift: float, truth: float) -> None:
    """Of 200 campaigns with three rounds: any wrong verdict in at most one of twenty."""
    number = 200
    speed = [1.0, truth, *[1.0] * conditions][:conditions]
    paired = list(campaigns(conditions, 3, number, speed=speed, cv=0.01, drift=drift))
    wrong = sum(any_order(one[truth > 1.0 :], Standing.FASTER, Standing.SLOWER) for one in paired)
    assert wrong <= 0.05 * number + 3.0 * (0.05 * 0.95 * number) ** 0.5
    if truth > 1.0:
        assert sum(one[1].order is Standing.FASTER for one in paired) >= 0.95 * number
        hidden = [one[1].times_unpaired for one in paired if one[1].times_unpaired]
        assert sum((one.low or 0) > 1.0 for one in hidden) <= 0.5 * number


@pytest.mark.parametrize(("conditions", "repeats"), [(8, 3), *of_a_night((2, 3), (2, 5))])
def test_equal_rounds_are_seldom_pairs(conditions: int, repeats: int) -> None:
    """Pairs chosen because few differences agree by luck would have intervals that are too narrow."""
    found = campaigns(conditions, repeats, 2400 // conditions, cv=0.02)
    assert np.mean([bool(one[1].paired_by) for one in found]) <= 0.03
