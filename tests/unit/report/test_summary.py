"""The first screen, the section of what went wrong, and what the charts draw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.pages.report import answers_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.report.compare.results import UNCONFIRMED, Results, results_of
from dscampaign.orchestrator.report.page.curves import POINTS, curves_of
from dscampaign.orchestrator.report.page.details import environment, setup
from dscampaign.orchestrator.report.page.elements import Section
from dscampaign.orchestrator.report.page.looks import looks_of
from dscampaign.orchestrator.report.page.questions import problems, questions
from dscampaign.orchestrator.report.page.summary import summary
from dscampaign.orchestrator.report.page.write import write_report
from dscampaign.tests.support.planted import Planted, PlantStore, Try, results_at

BASE = Planted("base")
NO_SCREEN = Section("")
FAST = Planted("fast", (0.05, 0.051, 0.052))


def first(results: Results) -> Section:
    return summary(results, looks_of(results))


def cells(section: Section) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for table in section.tables for row in table.rows]


def test_the_winner_is_first_and_marked_and_the_baseline_is_there(planted_url: PlantStore) -> None:
    slower = [Planted(f"slow{n}", tuple(0.06 + 0.002 * n + s for s in (0, 1e-4, 2e-4))) for n in range(6)]
    seen = first(results_at(planted_url(BASE, *slower, FAST)))
    assert len(seen.title.split()) <= 15
    names = [row[0].text for row in seen.tables[0].rows]
    assert names == ["fast", *(f"slow{n}" for n in range(4)), "base"]
    best, *_, base = seen.tables[0].rows
    assert [cell.mark for cell in best][-1] == "best"
    assert (best[1].text, best[1].tip) == ("1.00 ×", "1.00")
    assert len({*(best[1].bar or (0, 1))}) == 1, "a whisker beside itself"
    assert base[0].note == "baseline"
    speed, low, high = base[1].bar or (0, 0, 0)
    assert low < speed < high <= 1
    assert [chart.name for chart in seen.charts] == ["speed_memory"]


def test_of_several_workloads_the_table_has_their_sentences(planted_url: PlantStore) -> None:
    results = results_at(planted_url(FAST, Planted("large", train={"model": "gpt2-large"})))
    rows = first(results).tables[0].rows
    groups = [row[0].text for row in rows if row[0].mark == "group"]
    assert groups == [f"{one.workload.name}: {one.answer.sentence}" for one in results.workloads]
    assert [text.partition(":")[0] for text in groups] == ["gpt2", "gpt2-large"]
    assert [row[0].text for row in rows if row[0].mark != "group"] == ["fast", "large"]


def test_bars_of_all_workloads_have_one_scale(planted_url: PlantStore) -> None:
    half = [Planted(f"half{m}", (0.2,) * 3, train={"model": m}) for m in ("a", "b")]
    ahead = Planted("ahead", (0.05,) * 3, (3.2, 3.21, 3.22), train={"model": "b"})
    full = [Planted(f"full{m}", (0.1,) * 3, train={"model": m}) for m in ("a", "b")]
    rows = first(results_at(planted_url(*full, *half, ahead))).tables[0].rows
    one, other = (row[1].bar for row in rows if len(row) > 1 and row[0].text.startswith("half"))
    assert one == pytest.approx(other, rel=0.01)


def test_the_loss_along_the_axis_that_decides_is_drawn_first(planted_url: PlantStore) -> None:
    rates = [
        Planted(f"lr-{lr}-{depth}", held_out=(loss,) * 3, params={"lr": lr, "depth": depth}, train={"lr": lr})
        for depth in (2, 4)
        for lr, loss in ((1e-4, 3.2), (1e-3, 3.0), (1e-2, 3.4))
    ]
    (chart,) = first(results_at(planted_url(*rates))).charts
    assert chart.name == "along_lr_held_out"
    rows = chart.spec["datasets"]["rows"]
    assert {(row["x"], round(row["y"], 3)) for row in rows} == {(1e-4, 3.2), (1e-3, 3.0), (1e-2, 3.4)}
    assert len({row["line"] for row in rows}) == 2


def test_where_loss_leads_the_first_table_has_losses_beside_the_best(planted_url: PlantStore) -> None:
    rates = [
        Planted(f"{lr}", held_out=(loss, loss + 0.01, loss + 0.02), params={"label": "", "lr": lr}, train={"lr": lr})
        for lr, loss in ((1e-4, 3.2), (1e-3, 3.0), (1e-2, 3.4))
    ]
    results = results_at(planted_url(*rates))
    seen = first(results)
    assert seen.title == "Use lr 1e-3: lowest held-out loss."
    assert seen.text == "3 repeats each, 0.12 GPU-hours"
    (table,) = seen.tables
    assert table.header == ("condition", "Δ held-out loss (nats)", "speed vs best", "memory", "verdict vs best")
    assert [(row[0].text, row[1].text, row[2].bar, row[-1].text) for row in table.rows] == [
        ("lr 1e-3", "–", None, "best"),
        ("lr 1e-4", "+0.200 [0.200, 0.200]", None, "worse"),
        ("lr 0.01", "+0.400 [0.400, 0.400]", None, "worse"),
    ]
    assert [row[1].bar for row in table.rows] == [pytest.approx((part,) * 3) for part in (0.0, 0.5, 1.0)]
    by_title = {one.title: one for one in questions(results, looks_of(results), NO_SCREEN)}
    (learning,) = by_title["Same learning?"].tables
    assert learning.header[4:6] == ("verdict vs baseline", "final")
    assert [row[0] for row in cells(by_title["What does each setting do?"])] == ["lr 1e-4 → 1e-3", "lr 1e-3 → 0.01"]
    lines = answers_page(results, Page(width=100)).splitlines()
    assert lines[1] == "3 repeats each, 0.12 GPU-hours"
    assert "+0.200 [0.200, 0.200]" in lines[5]
    assert lines[-1] == "baseline: lr 1e-4 (the first); 95 % intervals, corrected for 2 comparisons at once"


def test_equal_speeds_have_no_bars(planted_url: PlantStore) -> None:
    seen = first(results_at(planted_url(BASE, replace(BASE, name="twin"))))
    assert [row[1].bar for row in seen.tables[0].rows] == [None, None]


def test_without_step_times_the_use_of_the_time_is_unknown(planted_url: PlantStore) -> None:
    fast = [Planted(name, (0.05,), (None,), steps=20, tries=(Try(0, 20),), printed=True) for name in ("a", "b")]
    results = results_at(planted_url(*fast))
    assert "no step times" in {row[0] for row in cells(problems(results))}
    by_title = {one.title: one for one in questions(results, looks_of(results), NO_SCREEN)}
    assert by_title["Where did the time go?"].text.startswith("Unknown: no step times were read. ")
    assert by_title["What went wrong?"].text == "No attempt failed."


def test_lists_are_shown_as_words(planted_url: PlantStore) -> None:
    results = results_at(planted_url(replace(BASE, config={"command": ["train.py", "--lr", "a b"]}), FAST))
    campaign = replace(results.campaign, provenance={"variables": ["A", "B"]})
    assert ("variables", "A B") in cells(environment(replace(results, campaign=campaign)))
    assert "train.py --lr 'a b'" in {text for row in cells(setup(results)) for text in row}


def test_curves_are_thinned_to_their_share_of_the_page(planted_url: PlantStore) -> None:
    results = results_at(planted_url(Planted("long", steps=200, tries=(Try(last=200),)), FAST))
    looks = looks_of(results)
    for share, points in ((20 / POINTS, 20), (1, 160)):
        curves = curves_of(results.workloads[0], looks, share)
        assert (curves.thinned_to, len({row["step"] for row in curves.rows if row["c"] == 0})) == (points, points)
    section = next(one for one in questions(results, looks, NO_SCREEN) if one.title == "Same learning?")
    assert "curves are thinned to 160 steps" in section.text


def test_failures_exclusions_and_remarks_are_grouped(planted_url: PlantStore) -> None:
    lost: dict[str, Any] = {"tries": (Try(ended="crash"),), "state": RunState.FAILED}
    results = results_at(
        planted_url(
            FAST,
            Planted("back", tries=(Try(0, 60, "gpu"), Try(50, 100))),
            Planted("again", tries=(Try(0, 60, "gpu"), Try(55, 100))),
            *(Planted(f"lost{n}", (0.1,), (None,), reason=f"KeyError: 'x' at step {n}", **lost) for n in range(5)),
        )
    )
    section = problems(results)
    rows = cells(section)
    assert section.text.startswith("7 attempts failed; ")
    assert ("gpu", "2", "back, again", "it ended gpu", "attempt 2 from step 50") in rows
    assert [row[1:3] for row in rows if row[0] == "crash"] == [("5", "lost0, lost1 and 3 more")]
    assert "out" not in {row[0] for row in rows}
    assert len(rows) == len({row[0] for row in rows})


def test_a_doubt_stands_beside_the_condition_that_is_doubted(planted_url: PlantStore) -> None:
    rows = cells(problems(results_at(planted_url(BASE, Planted("noisy", (0.07, 0.12, 0.09))))))
    assert ("not proven", "1", "noisy", "repeats vary too much to separate it from base; add repeats") in rows


def test_silent_runs_are_reported(planted_url: PlantStore) -> None:
    results = results_at(planted_url(BASE, FAST))
    silent: Any = [replace(run, step=None) for run in results.runs]
    assert "no metrics" in {row[0] for row in cells(problems(results_of(results.campaign, silent)))}


def test_remarks_are_shown_of_conditions_that_are_out(planted_url: PlantStore) -> None:
    rows = cells(problems(results_at(planted_url(replace(BASE, usable_gb=10.0), replace(FAST, usable_gb=10.0)))))
    assert ("out", "2", "base, fast") in {row[:3] for row in rows}
    assert ("few steps timed", "6") in {row[:2] for row in rows}


def test_a_failed_condition_has_one_row_for_its_cause(planted_url: PlantStore) -> None:
    """Its losses that are not finite, its missing steps and its exclusion follow from it."""
    tries = (Try(0, 60, "diverged"), Try(30, 60, "diverged"))
    wild = Planted("wild", (0.1,), (3.0,), nan_from=40, tries=tries, state=RunState.FAILED, reason="NaN at step 40")
    rows = cells(problems(results_at(planted_url(BASE, FAST, wild))))
    assert [(row[0], row[1], row[2], row[4]) for row in rows if "wild" in row[2]] == [
        ("diverged", "2", "wild", "no further try")
    ]


def test_a_search_without_a_confirmed_trial_has_an_answer_and_a_report(planted_url: PlantStore, tmp_path: Path) -> None:
    results = results_at(planted_url(BASE))
    assert len(repr(results.workloads[0])) < 1000
    found = results_of(results.campaign, [replace(run, stage=Stage.TRIAL) for run in results.runs])
    assert answers_page(found, Page()).startswith(f"{UNCONFIRMED}\n")
    assert first(found).title == UNCONFIRMED
    assert setup(found).is_empty
    (tmp_path / "report.md").write_text("of the user")
    (tmp_path / "report.json").write_text('{"schema_version": "of another program"}')
    with pytest.raises(UserError, match=r"report\.json exists and belongs to no report"):
        write_report(found, tmp_path, 0.0)
    assert write_report(found, tmp_path / "report", 0.0) == write_report(found, tmp_path / "report", 1.0)
