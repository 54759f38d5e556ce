"""The published comparisons, trained: each template at its smallest scale on this machine's CPUs, up to its report.

`make documents` trains all of them, in about half an hour; `make test-all` the fastest. What a report has of GPUs is
tested with planted results, in tests/integration/report/test_documents.py.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from dscampaign.db import metrics, queries
from dscampaign.db.records import WARM_UP_STEPS, CampaignRow, MetricRow, warm_up_steps
from dscampaign.db.store import Store
from dscampaign.tests.support.report_documents import NEEDS_GPUS, ON_GPUS, PER_WORKLOAD, SECTIONS, TEMPLATES
from dscampaign.tests.support.report_page import Page

NAMES: Final = list(TEMPLATES) if os.environ.get("DOCUMENTS") == "all" else ["gpu-telemetry"]

pytestmark = [pytest.mark.nightly, pytest.mark.training]


@dataclass(frozen=True)
class Trained:
    """A campaign that has been trained, with its report."""

    name: str
    page: Page
    steps: dict[str, list[MetricRow]]

    @property
    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.page.document["runs"]
        return found


def _campaign(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _steps(store: Store, campaign: CampaignRow) -> dict[str, list[MetricRow]]:
    with store.read() as conn:
        return {run.name: list(metrics.metrics(conn, run.id)) for run in queries.runs(conn, campaign.id)}


@pytest.fixture(scope="module", params=NAMES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One template, as a user runs it."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    _campaign(folder, "init", "--from", name, "--scale", "smoke")
    _campaign(folder, "submit", "campaign.yaml", "--yes", "--watch")
    _campaign(folder, "report", name, "--output", "report")
    (database,) = folder.rglob("campaign.db")
    store = Store.open(f"sqlite:///{database}")
    with store.read() as conn:
        (campaign,) = queries.list_campaigns(conn)
    steps = _steps(store, campaign)
    store.close()
    return Trained(name, Page(folder / "report"), steps)


def test_every_run_is_completed_in_its_first_try(trained: Trained) -> None:
    assert {(run["state"], run["tries"]) for run in trained.runs} == {("completed", 1)}
    assert {run["name"] for run in trained.runs} == set(trained.steps)
    assert trained.page.document["failures"] == []


def test_every_table_of_the_document_that_needs_no_gpu_is_there_and_filled(trained: Trained) -> None:
    for section, columns in SECTIONS.items():
        if section not in ON_GPUS:
            wanted = {column.replace("GPU-hours", "rank-hours") for column in columns - NEEDS_GPUS}
            for row in trained.page.table(section):
                assert wanted <= row.keys(), section
                assert all(row[column] for column in wanted), (section, row)


def test_every_figure_that_needs_no_gpu_is_drawn(trained: Trained) -> None:
    page = trained.page
    for number in range(1, len(page.workloads) + 1):
        for kind, words in PER_WORKLOAD.items():
            assert words - NEEDS_GPUS <= page.words(kind if len(page.workloads) == 1 else f"{kind}_{number}")


def test_its_numbers_are_those_of_the_steps(trained: Trained) -> None:
    for run in trained.runs:
        steps = trained.steps[run["name"]]
        assert run["quality"]["received"] == run["quality"]["expected"] == len(steps) == steps[-1].step
        assert (run["loss"]["first"], run["loss"]["best"]) == (
            steps[0].loss,
            min(step.loss for step in steps if step.loss is not None),
        )
        assert run["loss"]["final"] < run["loss"]["first"]
        assert run["loss"]["held_out"] == [row.eval_loss for row in steps if row.eval_loss is not None][-1]
        warm_up = warm_up_steps(WARM_UP_STEPS, len(steps))
        times_s = [row.step_time_s for row in steps[warm_up:] if row.step_time_s]
        assert (run["timing"]["warm_up_steps"], run["timing"]["steps"]) == (warm_up, len(steps) - warm_up)
        assert run["timing"]["step_s"] == pytest.approx(statistics.median(times_s))
        pace = run["tokens_per_step"] * len(times_s) / sum(times_s)
        assert run["timing"]["tokens_per_s"] == pytest.approx(pace)


def test_its_conditions_are_medians_over_their_runs(trained: Trained) -> None:
    runs = {run["name"]: run for run in trained.runs}
    for workload in trained.page.workloads:
        for condition in workload["conditions"]:
            of = [runs[name] for name in condition["runs"]]
            assert condition["counted"] == len(of)
            for what, values in (
                ("step_s", [run["timing"]["step_s"] for run in of]),
                ("speed", [run["timing"]["tokens_per_s"] for run in of]),
                ("held_out", [run["loss"]["held_out"] for run in of]),
            ):
                assert condition[what]["value"] == pytest.approx(statistics.median(values))
                assert condition[what]["repeats"] == len(of)


def test_it_says_what_to_use_or_why_not(trained: Trained) -> None:
    for workload in trained.page.workloads:
        sentence = workload["recommendation"]["sentence"]
        assert sentence
        assert sentence in trained.page.markdown.replace("\\", "")
