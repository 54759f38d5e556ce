"""What a report says before anything else."""

from __future__ import annotations

from dscampaign.db import queries
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.report.page.summary import summary, summary_lines, what_failed
from dscampaign.tests.support.planted import Planted, PlantStore, Try, results_at

FAST = Planted("fast", (0.05, 0.051, 0.052))


def test_what_to_use_comes_first_then_what_it_costs_and_what_comes_next(planted_url: PlantStore) -> None:
    use, costs, following, happened, *_ = summary_lines(results_at(planted_url(Planted("base"), FAST)))
    assert use.startswith("Use fast (1.96 [1.87, 2.06] × baseline)")
    assert costs.startswith("fast: 20.1k [19.7k, 20.5k] tokens/s, 10.0 GB a GPU, ")
    assert "held-out loss 3.0000 (+0.0000 beside the baseline, equivalent)" in costs
    assert following == "Next comes base, behind by 1.96 [1.87, 2.06] × (established)."
    assert happened.startswith("6 of 6 runs completed, in 2 conditions")


def test_what_is_as_good_is_not_behind(planted_url: PlantStore) -> None:
    _, _, following, *_ = summary_lines(results_at(planted_url(FAST, Planted("twin", (0.0501, 0.0511, 0.0521)))))
    assert following == "twin is on a par (1.00 [0.96, 1.05] ×)."


def test_what_nothing_shows_to_be_behind_looks_on_a_par(planted_url: PlantStore) -> None:
    """Of one run each, nothing is established."""
    *_, following = [
        line
        for line in summary_lines(results_at(planted_url(Planted("a", (0.05,)), Planted("b", (0.0501,)))))
        if "par" in line or "Next" in line
    ]
    assert following == "b looks on a par (1.00 ×, not established)."


def test_of_the_baseline_the_speed_is_in_the_recommendation_alone(planted_url: PlantStore) -> None:
    use, costs, *_ = summary_lines(results_at(planted_url(FAST, Planted("slow", (0.1,) * 3))))
    assert use.startswith("Use fast (20.1k [19.7k, 20.5k] tokens/s): the fastest of 2")
    assert costs.startswith("fast: 10.0 GB a GPU, ")


def test_where_two_may_be_used_each_has_its_costs(planted_url: PlantStore) -> None:
    fast = Planted("fast", (0.05,) * 3, (3.0, 3.001, 2.999))
    learner = Planted("learner", (0.1,) * 3, (2.0, 2.001, 1.999))
    lines = summary_lines(results_at(planted_url(fast, learner)))
    assert [line.partition(":")[0] for line in lines[1:3]] == ["fast", "learner"]


def test_failures_of_all_runs_are_one_line(planted_url: PlantStore) -> None:
    results = results_at(
        planted_url(
            FAST,
            Planted("back", tries=(Try(0, 60, "gpu"), Try(50, 100))),
            Planted("again", tries=(Try(0, 60, "gpu"), Try(50, 100))),
            Planted("wild", (0.05,), nan_from=60, state=RunState.FAILED, tries=(Try(ended="diverged"),)),
        )
    )
    (line,) = what_failed(results)
    assert line.startswith("3 attempts failed (2 × gpu, diverged); 1 run did not complete (wild); ")
    assert "lost to attempts that failed or were cancelled" in line


def test_what_ran_before_its_experiment_was_changed_did_not_fail(planted_url: PlantStore) -> None:
    url = planted_url(FAST, Planted("changed", (0.05,)))
    store = Store.open(url)
    with store.write() as conn:
        changed = next(run for run in queries.runs(conn, 1) if run.name == "changed")
        queries.update_run(conn, changed.id, config_hash="h2")
    store.close()
    assert list(what_failed(results_at(url))) == ["0.0096 GPU-hours (25%) spent on attempts of earlier configurations."]


def test_where_nothing_failed_nothing_is_said_of_it(planted_url: PlantStore) -> None:
    assert list(what_failed(results_at(planted_url(FAST)))) == []


def test_one_workload_needs_no_table(planted_url: PlantStore) -> None:
    assert summary(results_at(planted_url(FAST))).tables == ()


def test_of_several_workloads_a_table_says_what_to_use_for_each(planted_url: PlantStore) -> None:
    section = summary(results_at(planted_url(FAST, Planted("large", train={"model": "gpt2-large"}))))
    assert [table.header[0] for table in section.tables] == ["for"]
    assert section.lead[0][0].startswith("model gpt2: Use fast")


def test_of_many_workloads_the_table_alone_says_what_to_use(planted_url: PlantStore) -> None:
    many = (Planted(f"n{length}", train={"seq_len": length}) for length in (128, 256, 512, 1024))
    results = results_at(planted_url(*many))
    section = summary(results)
    assert section.lead == (("4 workloads: the table says what to use for each, Recommendation why.",),)
    assert [row[1] for row in section.tables[0].rows] == ["n128", "n256", "n512", "n1024"]
    assert sum("Use n" in line for line in summary_lines(results)) == 4
