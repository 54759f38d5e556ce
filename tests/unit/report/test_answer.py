"""The answer of planted campaigns: its sentence, the order of its rows, their verdicts, and the doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.report.compare.answer import Answer, Verdict, answer
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import baseline_of, conditions_of
from dscampaign.orchestrator.report.compare.reasons import Why, grouped_reasons, reasons_text
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.tests.support.planted import Plant, Planted, Try

SCRIPT = {"command": ["train.py"]}
QUICK = Planted("quick", (0.100,) * 3, (3.0, 3.001, 2.999))
LEARNER = Planted("learner", (0.104,) * 3, (2.5, 2.501, 2.499))
SWEEP = (
    Planted("a", (0.10,), (3.5,), params={"label": "", "lr": 3e-4, "depth": 12}),
    Planted("b", (0.12,), (3.0,), params={"label": "", "lr": 1e-3, "depth": 12}),
    Planted("c", (0.15,), (3.3,), params={"label": "", "lr": 1e-3, "depth": 1}),
)


def answered(runs: Sequence[MeasuredRun], by: Objective | None = None, baseline: str | None = None) -> Answer:
    conditions = conditions_of(runs)
    return answer(compare_to_baseline(conditions, baseline_of(conditions, baseline)), by)


def shown(found: Answer) -> list[tuple[str, str]]:
    return [(row.condition.name, row.verdict.value) for row in found.rows]


def codes(found: Answer) -> list[Why]:
    return [doubt.code for doubt in found.doubts]


def test_the_fastest_that_learns_as_well_is_first_and_marked(planted: Plant) -> None:
    slow, careless = Planted("slow", (0.2,) * 3), Planted("careless", (0.01,) * 3, (3.2, 3.21, 3.22))
    found = answered(planted(Planted("base"), slow, careless, Planted("fast", (0.05,) * 3)))
    assert found.sentence == "Use fast: 2.00 × the baseline's speed, same loss."
    assert shown(found) == [("fast", "best"), ("base", "behind"), ("slow", "behind"), ("careless", "out")]
    assert found.rows[1].beside_best
    assert found.rows[1].beside_best.value == pytest.approx(0.5, rel=0.01)
    assert found.excluded["careless"].text == "held-out loss is higher by 0.210 nats"
    assert found.established


def test_of_equal_speeds_the_least_memory_is_first(planted: Plant) -> None:
    found = answered(planted(Planted("base"), Planted("lean", (0.1005,) * 3, reserved_gb=6.0)))
    assert found.sentence == "Use lean: as fast as 1 other, least memory."
    assert (shown(found), found.tied) == ([("lean", "best"), ("base", "equal")], ("base",))


def test_without_repeats_there_is_a_ranking(planted: Plant) -> None:
    found = answered(planted(Planted("base", (0.2,), (3.0,)), Planted("fast", (0.1,), (3.0,))))
    assert found.sentence == "fast ranks first: 2.00 × the baseline's speed; only 1 run each."
    assert (shown(found), codes(found)) == ([("fast", "best"), ("base", "not_proven")], [Why.FEW_RUNS])
    assert found.doubts[0].text == "only 1 run each; set `repeats: 3`"


def test_where_an_axis_changes_the_learning_loss_leads(planted: Plant) -> None:
    found = answered(planted(*(replace(one, config=SCRIPT) for one in SWEEP)))
    assert found.lead is Objective.LOSS
    assert found.sentence == "lr 1e-3 · 12 layers ranks first: lowest held-out loss; only 1 run each."
    assert shown(found) == [("b", "best"), ("c", "not_proven"), ("a", "not_proven")]
    assert [row.condition.title for row in found.rows][1:] == ["lr 1e-3 · 1 layer", "lr 3e-4 · 12 layers"]


def test_fastest_and_best_learner_are_both_named(planted: Plant) -> None:
    found = answered(planted(Planted("other", (0.3,) * 3), QUICK, LEARNER), baseline="other")
    assert found.undecided
    assert found.sentence == "Fastest: quick; lowest loss: learner. Choose by speed or loss."
    assert shown(found) == [("quick", "fastest"), ("learner", "learns_best"), ("other", "behind")]


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        (Objective.SPEED, "Use base: the fastest of 3."),
        (Objective.MEMORY, "Use lean: least memory, 6.0 GB."),
        (Objective.ENERGY, "Nothing can be recommended: energy was not measured."),
        (Objective.TIME_TO_LOSS, "Use base: least time to a loss of 2.506, 6 s."),
    ],
)
def test_an_objective_leads(planted: Plant, by: Objective, sentence: str) -> None:
    lean = Planted("lean", (0.3, 0.31, 0.32), reserved_gb=6.0)
    found = answered(planted(Planted("base"), lean, Planted("dense", (0.22,) * 3, reserved_gb=8.0)), by)
    assert found.sentence == sentence


def test_identical_repeats_count_once(planted: Plant) -> None:
    runs = planted(Planted("sgd", held_out=(3.031,) * 3), Planted("lion", held_out=(3.0,) * 3))
    first = {run.params["label"]: run.curve for run in reversed(runs)}
    found = answered([replace(run, curve=first[run.params["label"]]) for run in runs], Objective.LOSS)
    assert (codes(found), found.established) == ([Why.IDENTICAL], False)
    assert found.sentence == "lion ranks first: lowest held-out loss; identical repeats count once."


def test_a_baseline_that_a_retry_changed_is_no_reason_for_a_doubt(planted: Plant) -> None:
    shrunk = (Try(last=10, ended="oom", micro_batch=4), Try(micro_batch=2))
    found = answered(planted(Planted("large", tries=shrunk), Planted("slow", (0.2,) * 3), Planted("fast")))
    assert (found.chosen and found.chosen.name, found.established) == ("fast", True)
    assert found.excluded["large"].text == "ran with micro-batch 2 instead of 4; not compared"


def test_different_code_comes_first(planted: Plant) -> None:
    runs = planted(Planted("base", (0.2, 0.2, 0.2)), Planted("fast"))
    found = answered([replace(run, code=run.name[:4]) for run in runs])
    assert found.sentence == "Code differs: fast: 2.00 × the baseline's speed, same loss."
    assert (codes(found), found.established) == ([Why.DIFFERENT_CODE], False)


@pytest.mark.parametrize(
    ("conditions", "code", "end"),
    [
        ([Planted("base", (0.05, 0.06, 0.12)), Planted("b", (0.09, 0.10, 0.11))], Why.VARIES, "repeats vary too much"),
        ([Planted("base"), Planted("b", (0.05,) * 3, (3.0, 3.4, 2.6))], Why.LOSS_VARIES, "same loss not proven"),
        (
            [Planted("base"), Planted("b", (0.2,) * 3), Planted("c", state=RunState.RUNNING, tries=(Try(ended=None),))],
            Why.PROVISIONAL,
            "others are not finished",
        ),
        ([Planted("base"), Planted("b", held_out=(None,) * 3)], Why.FEW_COUNT, ""),
    ],
)
def test_a_doubt_names_its_true_reason(planted: Plant, conditions: list[Planted], code: Why, end: str) -> None:
    found = answered(planted(*conditions))
    if end:
        assert (codes(found), found.sentence.endswith(f"; {end}.")) == ([code], True)
        assert len(found.sentence.split()) <= 15
    else:
        assert found.excluded["b"].code is Why.NO_LOSSES


def test_reasons_are_grouped_by_their_codes_and_classes(planted: Plant) -> None:
    lost: dict[str, Any] = {"step_s": (0.1,), "held_out": (None,), "state": RunState.FAILED}
    found = answered(
        planted(
            Planted("base"),
            Planted("a", reason="KeyError: 'a' at step 7", tries=(Try(ended="crash"),), **lost),
            Planted("worse", held_out=(3.065, 3.066, 3.064)),
            Planted("b", reason="no b/data7", tries=(Try(ended="crash"),), **lost),
            Planted("worst", held_out=(3.19, 3.191, 3.189)),
            Planted("c", reason="out of memory", tries=(Try(ended="oom"),), **lost),
        )
    )
    groups = [(names, reasons_text(reasons)) for names, reasons in grouped_reasons(found.excluded.items())]
    assert groups == [
        (("a", "b"), "failed: KeyError: 'a' at step 7, and others"),
        (("worse", "worst"), "held-out loss is higher by 0.065 to 0.190 nats"),
        (("c",), "failed: out of memory"),
    ]


def test_no_run_and_no_end_give_no_choice(planted: Plant) -> None:
    assert answer([]).sentence == "No run has results yet."
    found = answered(planted(Planted("a", (0.1,), (3.0,), state=RunState.RUNNING, tries=(Try(ended=None),))))
    assert found.sentence == "Nothing can be recommended: no condition is finished."
    assert [row.verdict for row in found.rows] == [Verdict.OUT]
    assert not found.established
