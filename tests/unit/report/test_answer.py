"""The answer of planted campaigns: its sentence, the order of its rows, their verdicts, and the doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.compare.answer import Answer, answer
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import baseline_of, conditions_of
from dscampaign.orchestrator.report.compare.difference import compare, verdict
from dscampaign.orchestrator.report.compare.reasons import Why, grouped_reasons, reasons_text
from dscampaign.orchestrator.report.compare.results import results_of
from dscampaign.orchestrator.report.compare.statistics import Estimate, LossTest, Standing, estimate
from dscampaign.orchestrator.report.compare.wording import difference, difference_text, places
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.page.data import recommendation_document
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, Try, results_at

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
    return answer(compare_to_baseline(conditions, baseline_of(conditions, baseline)[0]), by)


def shown(found: Answer) -> list[tuple[str, str]]:
    return [(row.condition.name, row.verdict.value) for row in found.rows]


def codes(found: Answer) -> list[Why]:
    return [doubt.code for doubt in found.doubts]


def test_the_fastest_that_learns_as_well_is_first_and_marked(planted: Plant) -> None:
    slow, careless = Planted("slow", (0.2,) * 3), Planted("careless", (0.01,) * 3, (3.2, 3.21, 3.22))
    found = answered(planted(Planted("base"), slow, careless, Planted("fast", (0.05,) * 3)))
    ahead = "careless is 5.00 × as fast, but its loss is higher"
    assert found.sentence == f"Use fast: fastest of 3 comparable (of 4); {ahead}."
    assert shown(found) == [("fast", "best"), ("base", "slower"), ("slow", "slower"), ("careless", "out")]
    assert found.rows[1].beside_best
    assert found.rows[1].beside_best.value == pytest.approx(0.5, rel=0.01)
    assert found.excluded["careless"].text == "held-out loss is higher by 0.210 nats"
    assert found.proven


def test_a_faster_condition_that_may_learn_as_well_forbids_use(planted: Plant) -> None:
    """What is out comes last, the fastest first."""
    losses = (3.0, 3.2, 2.9)
    slow, quick = Planted("slow", (0.3,) * 3, losses), Planted("quick", (0.05,) * 3, losses)
    found = answered(planted(Planted("base"), slow, quick, Planted("other", (0.2,) * 3)))
    ahead = "quick is 2.00 × as fast, but its loss may be higher"
    assert found.sentence == f"base looks fastest of 2 comparable (of 4); {ahead}."
    assert (codes(found), found.proven) == ([Why.FASTER_UNPROVEN], False)
    assert [row.condition.name for row in found.rows] == ["base", "other", "quick", "slow"]


def test_of_equal_speeds_the_least_memory_is_first(planted: Plant) -> None:
    found = answered(planted(Planted("base"), Planted("lean", (0.1005,) * 3, reserved_gb=6.0)))
    assert found.sentence == "Use lean: as fast as 1 other, least memory."
    assert (shown(found), found.tied) == ([("lean", "best"), ("base", "equal")], ("base",))


def test_without_repeats_there_is_a_ranking(planted: Plant) -> None:
    found = answered(planted(Planted("base", (0.2,), (3.0,)), Planted("fast", (0.1,), (3.0,))))
    assert found.sentence == "fast ranks first: 2.00 × the baseline's speed; only 1 run each."
    assert (shown(found), codes(found)) == ([("fast", "first"), ("base", "not_proven")], [Why.FEW_RUNS])
    assert found.doubts[0].text == "only 1 run each; add repeats"


def test_where_an_axis_changes_the_learning_loss_leads(planted: Plant) -> None:
    found = answered(planted(*(replace(one, config=SCRIPT) for one in SWEEP)))
    assert found.lead is Objective.LOSS
    assert found.sentence == "lr 1e-3 · 12 layers ranks first: lowest held-out loss; only 1 run each."
    assert shown(found) == [("b", "first"), ("c", "not_proven"), ("a", "not_proven")]
    assert [row.condition.title for row in found.rows][1:] == ["lr 1e-3 · 1 layer", "lr 3e-4 · 12 layers"]


NOISY = [
    replace(one, config=SCRIPT, params={"label": "", "lr": lr})
    for one, lr in (
        (Planted("a", held_out=(2.579, 2.606, 2.628)), 1e-4),
        (Planted("b", held_out=(2.477, 2.520, 2.537)), 3e-4),
        (Planted("c", held_out=(2.499, 2.523, 2.530)), 1e-3),
    )
]


@pytest.mark.parametrize("by", [None, Objective.LOSS])
def test_where_loss_leads_the_baseline_decides_nothing(planted: Plant, by: Objective | None) -> None:
    lost = replace(NOISY[0], name="lost", params={"label": "", "lr": 1.0}, held_out=(None,) * 3, tries=(Try(last=0),))
    runs = planted(*NOISY, lost)
    answers = [answered(runs, by, baseline) for baseline in ("a", "b", "c", "lost")]
    assert {found.sentence for found in answers} == {"lr 3e-4 looks best by loss; lr 1e-3 may be as good."}
    assert {found.learner and found.learner.name for found in answers} == {"b"}
    assert {tuple(shown(found)) for found in answers} == {
        (("b", "first"), ("c", "not_proven"), ("a", "worse"), ("lost", "out"))
    }


def test_the_fastest_of_equal_losses_does_not_look_best_by_loss(planted: Plant) -> None:
    lowest = Planted("lowest", (0.3,) * 3, (2.4995, 2.500, 2.499))
    vague = Planted("vague", held_out=(2.5, 3.002, 2.99))
    found = answered(planted(lowest, LEARNER, vague), Objective.LOSS)
    assert found.sentence == "learner ranks first: fastest of 2 with equally low loss; vague may be as good."
    assert found.learner
    assert found.learner.name == "lowest"


def test_fastest_and_best_learner_are_both_named(planted: Plant) -> None:
    found = answered(planted(Planted("other", (0.3,) * 3), QUICK, LEARNER), baseline="other")
    assert found.undecided
    assert found.sentence == "Fastest: quick; lowest loss: learner. Choose by speed or loss."
    assert shown(found) == [("quick", "fastest"), ("learner", "lowest_loss"), ("other", "slower")]


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


@pytest.mark.parametrize(
    ("conditions", "code", "end"),
    [
        ([Planted("base", (0.05, 0.06, 0.12)), Planted("b", (0.09, 0.10, 0.11))], Why.VARIES, "b may be as fast"),
        ([Planted("base"), Planted("b", (0.05,) * 3, (3.0, 3.4, 2.6))], Why.LOSS_VARIES, "its loss may be higher"),
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
        (("worse", "worst"), "held-out loss is higher by 0.065 to 0.190 nats"),
        (("a", "b"), "crashed: KeyError: 'a' at step 7, and others"),
        (("c",), "failed: out of memory"),
    ]


@pytest.mark.parametrize(
    ("conditions", "chosen", "tied"),
    [
        (  # ties are not transitive: what one is faster than is out, though it ties with the fastest
            [
                Planted("fastest", (0.1000,) * 3),
                Planted("steady", (0.1015,) * 3, reserved_gb=8.0),
                Planted("lean", (0.1030,) * 3, reserved_gb=2.0),
            ],
            "steady",
            ("fastest", "lean"),
        ),
        ([Planted("base"), Planted("same", (0.101,) * 3)], "base", ("same",)),
        (  # memory that differs by little does not decide
            [Planted("z2", (0.101,) * 3, train={"zero_stage": 2}), Planted("z1", reserved_gb=10.04)],
            "z1",
            ("z2",),
        ),
        (  # a loss that may be worse loses a tie
            [Planted("base"), Planted("unsure", (0.1,) * 3, (3.0, 3.4, 2.6), reserved_gb=1.0)],
            "base",
            ("unsure",),
        ),
        (  # the better learner costs no speed
            [replace(QUICK, reserved_gb=2.0), replace(LEARNER, step_s=(0.101, 0.1012, 0.1009))],
            "learner",
            ("quick",),
        ),
    ],
)
def test_ties_are_decided_by_loss_memory_and_stage(
    planted: Plant, conditions: list[Planted], chosen: str, tied: tuple[str, ...]
) -> None:
    found = answered(planted(*conditions), baseline=conditions[0].name)
    assert (found.chosen and found.chosen.name, found.tied) == (chosen, tied)


FEW = [replace(one, step_s=one.step_s[:2], held_out=one.held_out[:2]) for one in (QUICK, LEARNER)]
VAGUE = [QUICK, replace(LEARNER, held_out=(2.5, 3.002, 2.99))]


@pytest.mark.parametrize("conditions", [FEW, VAGUE])
def test_a_loss_that_is_not_proven_better_decides_nothing(planted: Plant, conditions: list[Planted]) -> None:
    found = answered(planted(*conditions))
    assert [one.name if one else "" for one in (found.chosen, found.fastest, found.learner)] == ["quick"] * 3


def test_of_those_that_learn_best_the_fastest_is_chosen(planted: Plant) -> None:
    other = Planted("other", (0.3,) * 3, (2.4995, 2.501, 2.499))
    found = answered(planted(QUICK, other, Planted("middling", held_out=(2.8, 2.801, 2.799)), LEARNER), Objective.LOSS)
    assert found.sentence == "Use learner: fastest of 2 with equally low loss."
    assert shown(found) == [("learner", "best"), ("other", "slower"), ("middling", "worse"), ("quick", "worse")]
    assert found.proven


def test_no_condition_is_the_fastest_if_a_speed_is_unknown(planted: Plant) -> None:
    other = Planted("other", (0.3,) * 3, (2.501, 2.502, 2.503))
    runs = [replace(run, timing=None) if run.name.startswith("learner") else run for run in planted(other, LEARNER)]
    found = answered(runs, Objective.LOSS)
    assert found.sentence == "Use learner: lowest held-out loss."


def test_energy_is_that_of_a_token(planted: Plant) -> None:
    joules = {"lean": 0.004, "base": 0.005}
    runs = [
        replace(run, gpus=replace(run.gpus, j_per_token=joules[run.params["label"]]))
        for run in planted(Planted("base"), Planted("lean", (0.2,) * 3))
    ]
    found = answered(runs, Objective.ENERGY)
    assert found.sentence == "Use lean: least energy, 0.004 J/token."
    assert [(row.condition.name, row.figure) for row in found.rows][1] == ("base", "0.005 J/token")


def test_a_run_that_never_came_down_to_the_loss_is_out(planted: Plant) -> None:
    flat = [
        replace(run, curve=replace(run.curve, smoothed=[float("nan")] * len(run.curve.smoothed)))
        if run.name.startswith("lean")
        else run
        for run in planted(Planted("base"), Planted("lean", (0.05,) * 3))
    ]
    found = answered(flat, Objective.TIME_TO_LOSS)
    assert shown(found) == [("base", "best"), ("lean", "out")]


def test_the_spec_sets_the_objective(planted_url: PlantStore) -> None:
    url = planted_url(Planted("base"), Planted("lean", (0.2,) * 3, reserved_gb=6.0))
    store = Store.open(url)
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        assert campaign
        queries.update_campaign(conn, campaign.id, provenance={**campaign.provenance, "objective": "memory"})
    store.close()
    document = recommendation_document(results_at(url))
    [one] = document["workloads"]
    assert (document["objective"], one["recommendation"]["condition"]) == ("memory", "lean")
    assert [row["verdict"] for row in one["recommendation"]["rows"]] == ["best", "worse"]


def test_what_completed_early_or_ended_is_out_with_how_it_ended(planted: Plant) -> None:
    early = Planted("early", (0.05,), (2.0,), tries=(Try(last=20, ended="completed_early"),))
    runs = planted(early, Planted("base"), Planted("lost"))
    ends = {"lost": RunState.FAILED, "lost-r1": RunState.CANCELLED, "lost-r2": RunState.FAILED}
    runs = [replace(run, state=ends.get(run.name, run.state)) for run in runs]
    assert baseline_of(conditions_of(runs))[0].name == "base"
    out = {name: reason.text for name, reason in answered(runs).excluded.items()}
    assert baseline_of(conditions_of(runs))[1] == "the first that ran as configured"
    assert out == {"early": "ended early", "lost": "2 of 3 repeats failed, 1 cancelled"}


def test_a_pair_alone_and_all_conditions_name_their_correction(planted_url: PlantStore) -> None:
    noisy = [Planted("a", (0.1, 0.11, 0.12)), Planted("b", (0.08, 0.09, 0.1)), Planted("c", (0.09, 0.1, 0.12))]
    results = results_at(planted_url(*noisy))
    assert results.workloads[0].basis == (
        "baseline: a (the first); 95 % intervals, corrected for 2 comparisons at once"
    )
    left, right, _ = results.conditions
    alone = "95 % intervals, for this comparison alone; more at once make them wider."
    assert alone in verdict(compare(left, right))


def test_digits_follow_the_interval() -> None:
    def shown(value: float, half: float) -> str:
        found = Estimate(value, value - half, value + half, None, 3)
        return difference(value, LossTest(Standing.EQUAL, found, 0.01), " nats")

    assert shown(-0.00234567, 0.0041) == "-0.0023"
    assert shown(-0.00234567, 0.75) == "+0.00"
    assert shown(-0.00234567, 0.05) == "-0.002"
    assert shown(-0.00234567, 0.00002) == "-0.0023"


def test_a_table_has_the_digits_of_its_finest_difference() -> None:
    tests = [
        LossTest(Standing.EQUAL, Estimate(x, x - h, x + h, None, 3), 0.01) for x, h in ((0.03, 0.4), (0.002, 1e-4))
    ]
    assert [difference_text(one, " nats", ends=False, digits=places(tests, " nats")) for one in tests] == [
        "+0.0300",
        "+0.0020",
    ]


def shrunk(runs: Sequence[MeasuredRun], sizes: Mapping[str, int]) -> list[MeasuredRun]:
    """The same after an out-of-memory with these micro-batches before; all end with 4."""
    return [replace(run, first_micro_batch=sizes[run.params["label"]]) for run in runs]


def test_conditions_that_shrank_alike_are_ranked_with_their_size(planted_url: PlantStore) -> None:
    results = results_at(planted_url(Planted("a"), Planted("b", (0.08, 0.0801, 0.0802))))
    runs = shrunk(results.runs, {"a": 8, "b": 8})
    (one,) = results_of(results.campaign, runs).workloads
    assert one.answer.sentence == "Use b (micro-batch 4): 1.25 × the baseline's speed, same loss."
    assert [row.verdict for row in one.answer.rows] == [Standing.BEST, Standing.SLOWER]
    assert one.answer.remarks[0].text == "retries ran all with micro-batch 4 instead of 8: compared with each other"
    assert verdict(compare(*conditions_of(runs)))[0].startswith("Mean step time: b -20.0 %")


@pytest.mark.parametrize("mixed", [False, True])
def test_conditions_that_shrank_from_other_sizes_or_after_steps_are_not(planted_url: PlantStore, mixed: bool) -> None:
    results = results_at(planted_url(Planted("a"), Planted("b")))
    runs = [replace(run, mixed=mixed) for run in shrunk(results.runs, {"a": 8, "b": 8 if mixed else 16})]
    (one,) = results_of(results.campaign, runs).workloads
    assert one.answer.sentence == "Nothing can be recommended: retries changed sizes; set `micro_batch: 4` for all."
    assert [row.verdict for row in one.answer.rows] == [Standing.OUT, Standing.OUT]


@pytest.mark.parametrize(("last", "mixed"), [(0, False), (60, True)])
def test_steps_of_another_size_are_seen(planted: Plant, last: int, mixed: bool) -> None:
    tries = (Try(0, last, "oom", micro_batch=8), Try(last // 2, 100))
    (run,) = planted(Planted("a", (0.1,), (3.0,), train={"micro_batch": 8}, tries=tries))
    assert (run.changed, run.mixed) == (True, mixed)


def test_the_spec_names_the_baseline_if_it_ran_as_asked(planted: Plant) -> None:
    points = [
        Planted(f"zero_stage-{n}_precision-{p}", params={"zero_stage": n, "precision": p})
        for n in (0, 1)
        for p in ("fp16", "fp32")
    ]
    planted_runs = planted(*points)
    conditions = conditions_of(planted_runs)
    assert baseline_of(conditions)[0].name == "zero_stage-0_precision-fp16"
    chosen, why = baseline_of(conditions, of_spec={"zero_stage": 1})
    assert (chosen.name, why) == ("zero_stage-1_precision-fp16", "named in the spec")
    chosen, why = baseline_of(conditions, "zero_stage-0_precision-fp32", {"zero_stage": 1})
    assert (chosen.name, why) == ("zero_stage-0_precision-fp32", "named by --baseline")
    failed = [replace(run, state=RunState.FAILED) if run.params["zero_stage"] else run for run in planted_runs]
    chosen, why = baseline_of(conditions_of(failed), of_spec={"zero_stage": 1})
    assert chosen.name == "zero_stage-0_precision-fp16"
    assert why == f"the first that ran as configured; {conditions[2].title} of the spec did not"


def test_identical_repeats_have_one_loss_and_three_speeds(planted: Plant) -> None:
    runs = planted(Planted("a", held_out=(3.031,) * 3), Planted("b", held_out=(3.0,) * 3))
    first = {run.params["label"]: run.curve for run in reversed(runs)}
    conditions = conditions_of([replace(run, curve=first[run.params["label"]]) for run in runs])
    assert [(len(one.counted), len(one.learned)) for one in conditions] == [(3, 1), (3, 1)]
    assert conditions[0].summary("held_out") == estimate([3.031])
    assert "count as one" in verdict(compare(*conditions))[-1]
