"""Speeds are compared in one unit, whatever each run says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dscampaign.orchestrator.report.compare.answer import answer
from dscampaign.orchestrator.report.compare.sensitivity import sensitivities
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.effects import effect_line
from dscampaign.tests.support.planted import Plant, Planted, beside_first


def silent(runs: Sequence[MeasuredRun], *names: str) -> list[MeasuredRun]:
    """The same, of which these runs do not say tokens."""
    return [_without_tokens(run) if run.name in names else run for run in runs]


def _without_tokens(run: MeasuredRun) -> MeasuredRun:
    assert run.timing
    return replace(run, timing=replace(run.timing, tokens_per_s=None))


def test_a_repeat_that_does_not_say_tokens_is_compared_by_its_steps(planted: Plant) -> None:
    runs = planted(
        *(Planted(name, s, params={"engine": name}) for name, s in (("ddp", (0.1,) * 3), ("b", (0.08,) * 3)))
    )
    found = beside_first(silent(runs, "b-r2"))
    assert [one.in_tokens for one in found] == [False, False]
    assert [one.speed.value for one in found if one.speed] == pytest.approx([10, 12.5], rel=0.01)
    assert found[1].times_baseline
    assert found[1].times_baseline.value == pytest.approx(1.25, rel=0.01)
    assert found[1].order == Standing.FASTER
    assert answer(found).sentence == "Use b: 1.25 × the baseline's speed, same loss."
    (change,) = sensitivities(found)
    assert effect_line(change).startswith("engine ddp → b: 1.25 ")


@pytest.mark.parametrize(("by_clock", "speed"), [(False, 2.5), (True, 10.0)])
def test_steps_per_second_are_those_of_the_whole_window(planted: Plant, by_clock: bool, speed: float) -> None:
    """Two steps of 0.1 s for each of 1 s; between two lines may lie what is no step."""
    (run,) = silent(planted(Planted("uneven", (0.1,), (3.0,))), "uneven")
    assert run.timing
    uneven = replace(run, timing=replace(run.timing, step_s=0.1, mean_s=0.4, by_clock=by_clock))
    (found,) = beside_first([uneven])
    assert list(found.speeds) == [pytest.approx(speed)]


def test_a_repeat_whose_speed_nobody_knows_leaves_the_unit_to_the_others(planted: Plant) -> None:
    runs = silent(planted(Planted("a"), Planted("b", (0.08,) * 3)), "b-r2")
    unknown = runs[-1]
    assert unknown.timing
    runs[-1] = replace(unknown, timing=replace(unknown.timing, step_s=0.0))
    found = beside_first(runs)
    assert found[1].in_tokens
    assert len(found[1].speeds) == 2
