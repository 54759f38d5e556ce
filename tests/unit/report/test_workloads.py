"""What may be compared with what, where not everything is known of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.recommend import recommend
from dscampaign.orchestrator.report.compare.workloads import times_to_loss, workloads_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted


def workloads(runs: Sequence[MeasuredRun]) -> list[list[str]]:
    """Names of the conditions of each."""
    return [[one.name for one in workload.conditions] for workload in workloads_of(conditions_of(runs))]


def own_script(runs: Sequence[MeasuredRun], *tokens_per_step: int | None) -> list[MeasuredRun]:
    """The same, of a script of one's own that says so many tokens per step."""
    config = {"command": ["python", "train.py"]}
    return [replace(run, config=config, tokens_per_step=said) for run, said in zip(runs, tokens_per_step, strict=True)]


def test_what_has_yet_to_begin_is_on_the_ranks_that_it_asks_for(planted: Plant) -> None:
    waits = Planted("waits", (0.1,), (3.0,), tries=(), state=RunState.PENDING)
    runs = planted(Planted("base"), Planted("fast", (0.05,) * 3), waits)
    assert workloads(runs) == [["base", "fast", "waits"]]
    (workload,) = workloads_of(conditions_of(runs))
    found = recommend(compare_to_baseline(workload.conditions, workload.baseline))
    assert not found.established
    assert "Provisional" in found.sentence


def test_a_script_s_own_tokens_per_step_may_be_rounded(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("fast", (0.08,) * 3))
    assert workloads(own_script(runs, 1024, 1024, 1025, 1025, 1024, 1026)) == [["base", "fast"]]
    assert workloads(own_script(runs, 1024, 1024, 1024, 2048, 2048, 2048)) == [["base"], ["fast"]]


def test_a_script_s_run_without_a_line_is_compared_with_the_others(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("crashed", (0.08,) * 3))
    assert workloads(own_script(runs, 1024, 1024, 1024, 1024, 1024, None)) == [["base", "crashed"]]
    assert workloads(own_script(runs, 1024, 1024, 1024, None, None, None)) == [["base", "crashed"]]


def test_where_several_do_other_work_the_unknown_is_apart(planted: Plant) -> None:
    runs = planted(Planted("small", (0.1,), (3.0,)), Planted("large", (0.1,), (3.0,)), Planted("new", (0.1,), (3.0,)))
    assert workloads(own_script(runs, 1024, 4096, None)) == [["small"], ["large"], ["new"]]


def test_a_baseline_whose_repeats_differ_much_is_a_coarse_measure(planted: Plant) -> None:
    base = Planted("base", held_out=(2.8, 3.0, 3.2))
    runs = planted(base, Planted("worse", held_out=(3.1, 3.3, 3.5)))
    (workload,) = workloads_of(conditions_of(runs))
    judged = compare_to_baseline(workload.conditions, workload.baseline)
    assert judged[0].loss.margin == judged[1].loss.margin == pytest.approx(0.4)
    assert any("losses 0.400 nats apart count as equal" in sentence for sentence in recommend(judged).advice)
    assert not any("count as equal" in sentence for sentence in recommend(judged[:1]).advice), "nothing to compare"


def test_the_time_to_a_loss_is_a_median_of_two_repeats_too(planted: Plant) -> None:
    runs = planted(Planted("small", (0.1, 0.4)), Planted("large", (0.1, 0.4), train={"global_batch": 16}))
    conditions = conditions_of(runs)
    for found in times_to_loss(conditions):
        each = [_reached(run, found.loss) for run in found.condition.counted]
        assert all(each)
        seconds, tokens = zip(*(one for one in each if one), strict=True)
        assert seconds[0] != seconds[1]
        assert found.seconds == pytest.approx(sum(seconds) / 2)
        assert found.tokens == pytest.approx(sum(tokens) / 2)


def _reached(run: MeasuredRun, loss: float) -> tuple[float, float] | None:
    """Seconds and tokens when its smoothed loss first came down to this."""
    curve = run.curve
    points = zip(curve.smoothed, curve.seconds, curve.tokens, strict=True)
    return next(((seconds, tokens) for smoothed, seconds, tokens in points if smoothed <= loss), None)
