"""What is recommended by each objective, with planted answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.objectives import Answer
from dscampaign.orchestrator.report.compare.recommend import Recommendation, recommend
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.page.data import recommendation_document
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, results_at

BASE = Planted("base", (0.100, 0.101, 0.102), reserved_gb=20.0)
LEAN = Planted("lean", (0.120, 0.121, 0.122), reserved_gb=8.0)
DENSE = Planted("dense", (0.110, 0.111, 0.112), reserved_gb=8.1)
WORSE = Planted("worse", (0.090, 0.091, 0.092), (3.5, 3.5, 3.5), reserved_gb=1.0)


def by(objective: Objective, runs: Sequence[MeasuredRun]) -> Recommendation:
    conditions = conditions_of(runs)
    return recommend(compare_to_baseline(conditions, conditions[0]), objective)


def chosen(found: Recommendation) -> str | None:
    return found.chosen.name if found.chosen else None


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (Objective.SPEED, "base"),
        (Objective.MEMORY, "dense"),
    ],
)
def test_each_objective_has_its_winner_and_what_learns_worse_is_none(
    planted: Plant, objective: Objective, expected: str
) -> None:
    found = by(objective, planted(BASE, LEAN, DENSE, WORSE))
    assert chosen(found) == expected
    assert found.established
    assert list(found.excluded) == ["worse"]
    assert found.fastest
    assert found.fastest.name == "base"


def test_of_those_that_need_as_little_memory_the_fastest_is_used(planted: Plant) -> None:
    found = by(Objective.MEMORY, planted(BASE, LEAN, DENSE))
    assert chosen(found) == "dense"
    assert found.sentence.startswith(
        "Use dense (8.1 GB): as good as lean by this measure, and the fastest of them. base is the fastest, at 1.10"
    )
    assert found.answer == Answer("dense", "8.1 GB", "lean", "0.99 [0.99, 0.99] ×", "tie", level=True)


def test_memory_decides_where_it_differs(planted: Plant) -> None:
    found = by(Objective.MEMORY, planted(BASE, replace(LEAN, reserved_gb=6.0), DENSE))
    assert found.sentence.startswith(
        "Use lean (6.0 GB): it needs the least memory among 3 configurations that are feasible and learn no worse than "
        "the baseline. base is the fastest"
    )
    assert found.answer
    assert (found.answer.runner_up, found.answer.shown) == ("dense", "established")


def test_what_was_not_measured_is_said_to_be(planted: Plant) -> None:
    found = by(Objective.ENERGY, planted(BASE, LEAN))
    assert found.sentence == "Nothing can be recommended by energy: energy was not measured (base, lean)."
    assert found.excluded == {"base": "energy was not measured", "lean": "energy was not measured"}
    assert (found.chosen, found.answer, found.established) == (None, None, False)


def test_energy_is_that_of_a_token(planted: Plant) -> None:
    runs = [
        replace(run, gpus=replace(run.gpus, j_per_token=0.004 if run.name.startswith("lean") else 0.005))
        for run in planted(BASE, LEAN)
    ]
    found = by(Objective.ENERGY, runs)
    assert found.answer == Answer("lean", "0.00400 J/token", "base", "1.25 [1.25, 1.25] ×", "established")


def test_without_repeats_nothing_is_established(planted: Plant) -> None:
    found = by(
        Objective.MEMORY,
        planted(replace(BASE, step_s=(0.1,), held_out=(3.0,)), replace(LEAN, step_s=(0.12,), held_out=(3.0,))),
    )
    assert chosen(found) == "lean"
    assert not found.established
    assert found.answer
    assert found.answer.shown == "not established"
    assert found.sentence.startswith("Ranked first: lean")
    assert found.sentence.endswith("Inconclusive: only 1 run each; set `repeats: 3`.")


def test_repeats_that_vary_too_much_establish_nothing(planted: Plant) -> None:
    runs = planted(BASE, LEAN)
    joules = iter((0.004, 0.006, 0.0055, 0.0045, 0.0065, 0.0050))
    found = by(Objective.ENERGY, [replace(run, gpus=replace(run.gpus, j_per_token=next(joules))) for run in runs])
    assert "Inconclusive: repeats vary too much to separate it from" in found.sentence
    assert found.answer
    assert found.answer.shown == "not established"


def test_the_loss_that_all_reach_is_reached_by_one_first(planted: Plant) -> None:
    found = by(
        Objective.TIME_TO_LOSS,
        planted(BASE, replace(LEAN, step_s=(0.3, 0.31, 0.32)), replace(DENSE, step_s=(0.05,) * 3)),
    )
    assert chosen(found) == "dense"
    assert found.established
    assert "it trains for the shortest time to a loss of 2." in found.sentence


def test_a_run_that_never_came_down_to_the_loss_is_out(planted: Plant) -> None:
    runs = planted(BASE, LEAN)
    flat = [
        replace(run, curve=replace(run.curve, smoothed=[float("nan")] * len(run.curve.smoothed)))
        if run.name.startswith("lean")
        else run
        for run in runs
    ]
    found = by(Objective.TIME_TO_LOSS, flat)
    assert chosen(found) == "base"
    assert list(found.excluded) == ["lean"]


def test_the_spec_says_what_counts(planted_url: PlantStore) -> None:
    url = planted_url(BASE, replace(LEAN, reserved_gb=6.0))
    assert results_at(url).workloads[0].recommendation.chosen
    store = Store.open(url)
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        assert campaign
        queries.update_campaign(conn, campaign.id, provenance={**campaign.provenance, "objective": "memory"})
    store.close()
    results = results_at(url)
    assert chosen(results.workloads[0].recommendation) == "lean"
    assert recommendation_document(results)["objective"] == "memory"
