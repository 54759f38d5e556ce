"""Losses that are not finite: what is judged, and what a report shows of them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.status import read_status, with_final_figures
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.export.rows import columns_and_rows
from dscampaign.orchestrator.formatting import figure
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.measure.losses import Loss
from dscampaign.tests.support.planted import Planted, flags_of, results_at
from dscampaign.tests.support.report_page import Page

PlantStore = Callable[..., str]

NAN = float("nan")
BASE = Planted("base")
ENDINGS = {
    "evaluated": Planted("wild", (0.05,) * 3, (NAN,) * 3, evaluated={50: 3.0}, nan_from=60),
    "evaluated alone": Planted("wild", (0.05,) * 3, (NAN,) * 3, evaluated={50: 3.0}),
    "one repeat": Planted("wild", (0.05,) * 3, (3.0, 3.0, NAN)),
    "after the last evaluation": Planted("wild", (0.05,) * 3, (None,) * 3, evaluated={50: 3.0}, nan_from=60),
}
"""Each learned as well as the baseline as long as its losses were finite, and is twice as fast."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_loss_that_ended_not_finite_is_worse(planted_url: PlantStore, ending: str) -> None:
    (one,) = results_at(planted_url(BASE, ENDINGS[ending])).workloads
    _, wild = one.comparisons
    assert (wild.loss.verdict, wild.loss.reason) == (Standing.WORSE, "a loss is not finite")
    assert one.answer.chosen is not None
    assert one.answer.chosen.name == "base"
    last = wild.condition.runs[-1]
    assert last.loss.held_out is not None
    assert math.isnan(last.loss.held_out)
    assert "its newest held-out loss, or the training loss after that, is not finite" in flags_of(last)


def test_without_a_held_out_loss_the_training_loss_may_end_so_too(planted_url: PlantStore) -> None:
    none = (None,) * 3
    (one,) = results_at(
        planted_url(Planted("base", held_out=none), Planted("wild", (0.05,) * 3, none, nan_from=98))
    ).workloads
    _, wild = one.comparisons
    assert (wild.loss_is, wild.loss.verdict) == ("final training", Standing.WORSE)


def test_a_report_names_what_is_not_finite(planted_url: PlantStore, tmp_path: Path) -> None:
    url = planted_url(BASE, ENDINGS["evaluated"])
    assert main(["report", "sweep", "--store", url, "--output", str(tmp_path / "out")]) == 0
    page = Page(tmp_path / "out")
    _, wild = page.table("Same learning")
    assert (wild["final"], wild["reduction"]) == ("NaN", "NaN")
    assert (wild["held-out loss"], wild["verdict vs baseline"], wild["because"]) == (
        "NaN",
        "worse",
        "a loss is not finite",
    )
    assert "NaN" in page.html
    found = page.workloads[0]["conditions"][1]
    assert found["held_out"] == {"value": "NaN", "low": None, "high": None, "std": None, "repeats": 3}
    json.dumps(page.document, allow_nan=False)
    rows = list(csv.DictReader((page.folder / "conditions.csv").open()))
    assert [row["held_out.value"] for row in rows][-1] == "NaN"
    assert not any(cell == "nan" for row in rows for cell in row.values())
    for words in (["recommend", "sweep"], ["compare", "sweep", "base", "wild"]):
        assert main([*words, "--store", url]) == 0
        assert main([*words, "--store", url, "--json"]) == 0


@pytest.mark.parametrize(("first", "final", "reduction"), [(4.0, 3.0, 0.25), (-2.0, -3.0, 0.5), (-2.0, -1.0, -0.5)])
def test_a_loss_below_0_is_reduced_where_it_falls(first: float, final: float, reduction: float) -> None:
    assert Loss(first, final, final, None).reduction == reduction


def test_status_export_and_report_have_the_same_final_loss(planted_url: PlantStore) -> None:
    url = planted_url(Planted("base", (0.1, 0.2)), Planted("other", (0.1,)))
    expected = {run.name: run.loss.final for run in results_at(url).runs}
    store = Store.open(url)
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
    assert campaign
    shown = with_final_figures(store, read_status(store, campaign))
    assert {run.name: run.loss for run in shown.runs} == pytest.approx(expected)
    with columns_and_rows(store, campaign, "runs") as (columns, rows):
        exported = {row[columns.index("name")]: row[columns.index("final_loss")] for row in rows}
    assert exported == pytest.approx(expected)
    store.close()


def test_a_completed_run_has_the_speed_of_its_attempt_everywhere(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_end = Planted("told", (0.1,), speed={"tokens_per_s": 6500.0, "mfu": 0.5})
    odd: Any = {"tokens_per_s": "many"}
    url = planted_url(slow_end, Planted("odd", (0.1,), speed=odd))
    assert main(["status", "sweep", "--store", url, "--json"]) == 0
    told, unclear = json.loads(capsys.readouterr().out)["runs"]
    assert (told["tokens_per_s"], told["mfu"]) == (6500.0, 0.5)
    assert unclear["tokens_per_s"] > 0
    for words in (["status", "sweep"], ["explain", "sweep", "told"]):
        assert main([*words, "--store", url]) == 0
        out = capsys.readouterr().out
        assert "6.5k" in out
        assert figure(told["loss"]) in out
