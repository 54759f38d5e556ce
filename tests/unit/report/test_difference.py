"""Two conditions beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.selection import find_run
from dscampaign.orchestrator.pages.report import comparison_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.report.compare.conditions import conditions_of
from dscampaign.orchestrator.report.compare.difference import (
    ComparedOperands,
    compare,
    compare_operands,
    figures,
    verdict,
)
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.flags import UNTIMED
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.tests.support.planted import Plant, Planted, PlantStore, Try, flags_of, results_at


def test_step_times_that_nobody_knows_are_not_told_and_it_is_said_why(planted: Plant) -> None:
    """20 steps of 50 ms: the lines are known to within 0.25 s."""
    fast = [Planted(name, (0.05,), (None,), steps=20, tries=(Try(0, 20),), printed=True) for name in ("a", "b")]
    timed = [Planted(name, (0.3, 0.4, 0.5), printed=True) for name in ("c", "d")]
    first, second, *runs = planted(*fast, *timed)
    assert [first.timing, second.timing] == [None, None]
    assert all(UNTIMED in flags_of(run) for run in (first, second))
    one = compare(*conditions_of([first, second]))
    assert "step time" not in {name for name, *_ in figures(one)}
    assert f"b: {UNTIMED}." in verdict(one)
    assert sum("between two lines" in each for each in verdict(compare(*conditions_of(runs)))) == 2


@pytest.mark.parametrize(
    ("losses", "end"),
    [
        ((2.9, 2.999, 3.101), "b -0.1000 [-0.1025, -0.0975] nats beside a: better (margin 0.010)."),
        ((3.01, 3.13, 3.22), "b +0.020 [-0.005, 0.045] nats beside a: not proven: the repeats vary too much."),
    ],
)
def test_a_difference_of_losses_has_an_interval_and_margin(planted: Plant, losses: tuple[float, ...], end: str) -> None:
    one = compare(*conditions_of(planted(Planted("a", held_out=(3.0, 3.1, 3.2)), Planted("b", held_out=losses))))
    assert verdict(one)[-1] == f"Held-out loss: {end}"


def test_a_comparison_fits_a_narrow_screen(planted: Plant) -> None:
    names = ("a_rather_long_name_of_a_condition", "another_long_name_of_a_condition")
    one = compare(*conditions_of(planted(*(Planted(name, (0.1,), (3.0,)) for name in names))))
    lines = comparison_page(ComparedOperands((one,)), Page(width=60)).splitlines()
    assert all(len(line) <= 60 for line in lines if "1 of 1" in line or line.startswith("figure"))
    assert any(line.split()[:2] == ["tries", "in"] for line in lines)


def test_no_speed_is_read_from_steps_that_a_script_counts_anew(planted_url: PlantStore) -> None:
    store = Store.open(planted_url(*(Planted(name, (0.05,) * 3, (3.0,) * 3) for name in ("a", "b"))))
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        assert campaign
        run_id = queries.runs(conn, campaign.id)[0].id
        attempt_id = queries.attempts(conn, campaign.id, run_id)[-1].id
        queries.add_event(conn, campaign.id, "spool.restarted", "step 1 again", run_id=run_id, attempt_id=attempt_id)
    first, *others = read_runs(store, campaign)
    assert first.timing is None
    assert "step 1 again" in flags_of(first)
    assert all(run.timing and "step 1 again" not in flags_of(run) for run in others)
    store.close()


def test_ranks_that_met_no_others_are_remarked(planted: Plant) -> None:
    [run] = planted(Planted("a", (0.05,), (3.0,), ranks=2))
    alone = "its 2 ranks never formed a group of 2: each may have trained alone"
    remarked = {group: alone in flags_of(replace(run, group=group)) for group in (None, 0, 1, 2)}
    assert remarked == {None: False, 0: True, 1: True, 2: False}


def test_the_margin_of_the_spec_counts_here_as_in_the_report(planted_url: PlantStore) -> None:
    url = planted_url(Planted("lr-0.0001"), Planted("lr-0.0003", held_out=(3.05, 3.05, 3.05)))
    store = Store.open(url)
    with store.write() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        assert campaign
        queries.update_campaign(conn, campaign.id, provenance={**campaign.provenance, "loss_margin": 0.1})
    (one,) = compare_operands(store, ["sweep", "lr-1e-4", "lr-3e-4"]).comparisons
    assert find_run(store, ["lr-1e-4-r2"])[1].name == "lr-0.0001-r2"
    store.close()
    in_report = results_at(url).comparisons[1]
    assert one.result.loss.verdict == in_report.loss.verdict == Standing.EQUAL
    assert one.result.loss.margin == in_report.loss.margin == 0.1
    assert (one.result.times_baseline, one.result.order) == (in_report.times_baseline, in_report.order)
