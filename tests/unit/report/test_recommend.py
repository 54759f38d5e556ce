"""Which configuration to use, where several are as fast, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.recommend import Recommendation, recommend
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Plant, Planted


def advice(runs: Sequence[MeasuredRun]) -> Recommendation:
    conditions = conditions_of(runs)
    return recommend(compare_to_baseline(conditions, conditions[0]))


def test_one_that_ties_may_need_less_than_the_chosen_one(planted: Plant) -> None:
    found = advice(
        planted(
            Planted("fastest", (0.1000,) * 3),
            Planted("steady", (0.1015,) * 3, reserved_gb=8.0),
            Planted("lean", (0.1030,) * 3, reserved_gb=2.0),
        )
    )
    assert found.chosen
    assert (found.chosen.name, found.tied) == ("steady", ("fastest", "lean"))
    assert found.sentence == "Use steady (0.99 [0.98, 0.99] × baseline): as fast as fastest, lean."


def test_what_needs_as_much_does_not_need_least(planted: Plant) -> None:
    found = advice(planted(Planted("base", (0.1,) * 3), Planted("same", (0.101,) * 3)))
    assert found.sentence == "Use base: as fast as same."


def test_memory_that_differs_by_little_does_not_decide_and_is_not_called_least(planted: Plant) -> None:
    stages = [Planted("z2", (0.101,) * 3, reserved_gb=10.0, train={"zero_stage": 2}), Planted("z1", reserved_gb=10.04)]
    found = advice(planted(*stages))
    assert found.chosen
    assert found.chosen.name == "z1"
    assert found.sentence.endswith("as fast as z2.")


def test_what_another_beats_in_everything_is_not_chosen(planted: Plant) -> None:
    stages = [Planted("z2", reserved_gb=10.0, train={"zero_stage": 2}), Planted("z1", (0.101,) * 3, reserved_gb=10.04)]
    found = advice(planted(*stages))
    assert found.chosen
    assert (found.chosen.name, found.front) == ("z2", ("z2",))
    assert found.sentence == "Use z2: as fast as z1, and needs least."


def test_what_has_completed_without_a_speed_is_told(planted: Plant) -> None:
    runs = planted(Planted("base"), Planted("silent"))
    found = advice([replace(run, timing=None) if run.name.startswith("silent") else run for run in runs])
    assert found.excluded == {"silent": "its speed is not known"}
    assert found.chosen
    assert found.chosen.name == "base"


def test_nothing_is_recommended_where_no_speed_is_known(planted: Plant) -> None:
    found = advice([replace(run, timing=None) for run in planted(Planted("base"))])
    assert found.sentence == "Nothing can be recommended: base: its speed is not known."


def test_what_stands_alone_is_said_to(planted: Plant) -> None:
    alone = advice(planted(Planted("one")))
    assert alone.sentence.startswith("Use one: the only configuration.")
