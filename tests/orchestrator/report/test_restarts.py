"""Figures of runs that were resumed, lost lines, or ended without a loss."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from dscampaign.db.records import METRIC_COLUMNS
from dscampaign.db.series import Series
from dscampaign.orchestrator.report.conditions import conditions_of
from dscampaign.orchestrator.report.facts import RunFacts
from dscampaign.orchestrator.report.judge import judge
from dscampaign.orchestrator.report.recommend import recommend
from dscampaign.orchestrator.report.statistics import Sameness
from dscampaign.orchestrator.report.timing import lines_of
from dscampaign.orchestrator.report.workloads import workloads_of

from .planted import Planted, Try

Plant = Callable[..., list[RunFacts]]


def test_an_attempt_warms_up_for_as_long_as_it_did_whatever_is_left_of_it(planted: Plant) -> None:
    """Of the first attempt's 60 steps ten are left, all of its warm-up; the second one warms up for 20 more."""
    (run,) = planted(Planted("back", (0.1,), (3.0,), tries=(Try(0, 60, "node"), Try(10, 100))))
    assert run.timing
    assert (run.timing.warm_up_steps, run.timing.steps) == (30, 70)
    assert run.timing.step_s == pytest.approx(0.1, rel=0.01)
    assert run.timing.p99_s < 0.11


def test_lost_lines_were_not_made_again(planted: Plant) -> None:
    lost, back = planted(
        Planted("lost", (0.1,), (3.0,), drop=frozenset(range(50, 60))),
        Planted("back", (0.1,), (3.0,), tries=(Try(0, 60, "node"), Try(50, 100))),
    )
    assert (lost.quality.gaps, lost.quality.repeated) == (10, 0)
    assert (back.quality.gaps, back.quality.repeated) == (0, 10)


def test_a_resumed_attempt_s_first_line_stands_for_what_had_no_line_yet() -> None:
    """A line every ten steps; the first attempt ends with a checkpoint at step 145."""
    steps = [*range(10, 150, 10), *range(150, 201, 10)]
    generations = [1] * 14 + [2] * 6
    figures = {name: array("d", [0.1] * len(steps)) for name in ("ts_s", *METRIC_COLUMNS.values())}
    series = Series(array("q", steps), array("q", generations), figures, {})
    lines = lines_of(series, {1: 0, 2: 145}, every=10)
    assert lines.stands_for.sum() == 200


def test_what_ended_without_a_loss_is_worse_whatever_it_was_before(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("nan", (0.05,) * 3, nan_from=60))
    (workload,) = workloads_of(conditions_of(runs))
    base, nan = judge(workload.conditions, workload.baseline)
    assert (nan.loss.verdict, nan.loss.reason) == (Sameness.WORSE, "a loss is not finite")
    chosen = recommend([base, nan]).chosen
    assert chosen
    assert chosen.name == "base"


def test_a_baseline_that_ended_without_a_loss_is_not_recommended(planted: Plant) -> None:
    runs = planted(Planted("base", nan_from=60), Planted("other", (0.2,) * 3))
    (workload,) = workloads_of(conditions_of(runs))
    judged = judge(workload.conditions, workload.baseline)
    assert judged[0].loss.verdict == Sameness.WORSE
    chosen = recommend(judged).chosen
    assert not chosen or chosen.name == "other"


def test_a_number_after_what_was_none_is_the_end(planted: Plant) -> None:
    (run,) = planted(Planted("well", (0.1,), (3.0,)))
    assert (run.loss.held_out, run.quality.non_finite) == (3.0, 0)
