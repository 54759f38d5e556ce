"""Which configuration to use, where several are as fast, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.compare.baseline import compare_to_baseline
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.recommend import Recommendation, recommend
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.report.page.data import document_of
from dscampaign.orchestrator.report.page.sections import sections_of, summary
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, Try, results_at

NO_DETAILS = GpuDetails({}, (), ())


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
    assert found.excluded == {"silent": "no step was timed"}
    assert found.chosen
    assert found.chosen.name == "base"


def test_nothing_is_recommended_where_no_speed_is_known(planted: Plant) -> None:
    found = advice([replace(run, timing=None) for run in planted(Planted("base"))])
    assert found.sentence == "Nothing can be recommended: base: no step was timed."


def test_what_stands_alone_is_said_to(planted: Plant) -> None:
    alone = advice(planted(Planted("one")))
    assert alone.sentence.startswith("Use one: the only configuration.")


def test_what_completed_early_is_left_out_and_is_no_baseline(planted_url: PlantStore) -> None:
    early = Planted("early", (0.05,), (2.0,), tries=(Try(last=20, ended="completed_early"),))
    results = results_at(planted_url(early, Planted("base"), Planted("other")))
    (one,) = results.workloads
    assert one.workload.baseline.name == "base"
    assert one.recommendation.excluded == {"early": "it completed early"}
    assert "Completed early, before the target step: early. Left out of comparisons." in summary(results)
    assert [run["early"] for run in document_of(results, NO_DETAILS)["runs"]][:2] == [True, False]


def test_report_and_comparison_count_what_completed_early_as_completed(planted_url: PlantStore) -> None:
    early = Planted("early", (0.05,), (2.0,), tries=(Try(last=20, ended="completed_early"),))
    results = results_at(planted_url(early, Planted("base")))
    assert next(iter(summary(results))).startswith("4 of 4 runs completed (1 early), in 2 conditions")
    table = next(section for section in sections_of(results, NO_DETAILS, {}) if section.title == "Conditions").tables[0]
    assert [row[1] for row in table.rows] == ["1/1 (1 early)", "3/3"]
    document = document_of(results, NO_DETAILS)
    assert (document["counts"]["completed"], document["completed_early"]) == (4, 1)


def test_an_early_run_that_is_tried_again_has_not_completed(planted_url: PlantStore) -> None:
    tries = (Try(last=20, ended="completed_early"),)
    early = Planted("early", (0.05,), (2.0,), tries=tries, state=RunState.PENDING)
    assert next(iter(summary(results_at(planted_url(early, Planted("base")))))).startswith("3 of 4 runs completed, in")


def test_what_fails_of_one_cause_is_told_once_and_short(planted_url: PlantStore) -> None:
    why = "KeyError: 'config' at step {} " + "with many words " * 20
    lost = [
        Planted(f"lost{i}", (0.1,), (None,), tries=(Try(ended="crash"),), state=RunState.FAILED, reason=why.format(i))
        for i in range(5)
    ]
    said = list(summary(results_at(planted_url(Planted("base"), *lost))))
    (line,) = [line for line in said if line.startswith("Not considered: ")]
    assert line.startswith("Not considered: lost0, lost1 and 3 more (it ended failed: KeyError: 'config' at step 0 ")
    assert len(line) < 200


def test_repeats_on_other_machines_are_remarked_upon(planted_url: PlantStore) -> None:
    store_url = planted_url(Planted("base"), Planted("other"))
    store = Store.open(store_url)
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        assert campaign
        for run in queries.runs(conn, campaign.id):
            partition = "h100" if run.name == "base-r2" else "a100"
            queries.update_run(conn, run.id, config={**run.config, "slurm": {"partition": partition, "time": run.name}})
    store.close()
    said = [line for line in summary(results_at(store_url)) if "different machines" in line]
    assert said == [
        "Repeats of base asked for different machines: slurm.partition a100 (base, base-r1), h100 (base-r2)."
    ]


def test_the_baseline_is_one_whose_loss_is_a_number(planted_url: PlantStore) -> None:
    """Earlier versions took a script that ended with NaN for completed."""
    lost = Planted("lost", held_out=(None,) * 3, nan_from=50)
    results = results_at(planted_url(lost, Planted("base", held_out=(None,) * 3)))
    assert results.workloads[0].workload.baseline.name == "base"
    assert "Learned worse than the baseline: lost." in summary(results)
    alone = list(summary(results_at(planted_url(lost, name="alone"), "alone")))
    assert "The loss of the baseline is not finite: lost." in alone
    assert not any(line.startswith("Learned worse") for line in alone)


@pytest.mark.parametrize(("opened", "said"), [(None, "it is not known whether"), (False, "did not read"), (True, "")])
def test_a_configuration_is_shown_only_where_the_script_has_read_it(
    planted: Plant, opened: bool | None, said: str
) -> None:
    full: dict[str, Any] = {"reserved_gb": 20.0, "config": {"command": ["train.py"]}}
    lost = Planted("large", (0.2,), (3.0,), tries=(Try(last=1, ended="oom"), Try()), **full)
    found = advice([replace(run, read_config=opened) for run in planted(Planted("base", **full), lost)])
    told = " ".join(found.advice)
    assert ("CAMPAIGN_DS_CONFIG" in told, said in told) == (bool(said), True)
    assert ("larger micro-batch" in told, "ZeRO 3" in told) == (opened is True, opened is True)
