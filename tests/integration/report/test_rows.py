"""Rows of ``conditions.csv`` have the figures of the page's tables."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.planted import Planted
from dscampaign.tests.support.report_page import Page

PlantStore = Callable[..., str]

CELLS: dict[str, dict[str, tuple[str, float, float]]] = {
    "Same learning": {
        "first": ("first_loss.value", 1, 1e-4),
        "final": ("final_loss.value", 1, 1e-4),
        "lowest loss": ("best_loss.value", 1, 1e-4),
    },
    "How fast": {
        "step (ms)": ("step_s.value", 1e3, 1e-3),
        "p99 (ms)": ("step_p99_s.value", 1e3, 1e-3),
        "steps timed": ("steps_timed", 1, 1e-9),
    },
    "Does it fit": {
        "usable (GB)": ("mem_usable_gb", 1, 1e-9),
        "of usable": ("mem_share", 100, 1e-1),
        "beside baseline": ("mem_beside_baseline", 100, 1e-1),
    },
    "What did the GPUs": {
        "power (W)": ("gpu_power_w.value", 1, 1e-2),
        "peak over 1 s (W)": ("gpu_power_avg_peak_w.value", 1, 1e-2),
        "hottest (°C)": ("gpu_temperature_c.value", 1, 1e-2),
        "energy (kJ)": ("energy_j.value", 1e-3, 1e-2),
        "samples": ("gpu_samples.value", 1, 1e-3),
    },
}
"""By section and column of the page: the column of the file, what it is multiplied by, and how exact the page is."""


def report(url: str, folder: Path) -> tuple[Page, list[dict[str, str]]]:
    """The page of the report, and the rows of its ``conditions.csv``."""
    assert main(["report", "sweep", "--store", url, "--output", str(folder)]) == 0
    with (folder / "conditions.csv").open() as stream:
        return Page(folder), list(csv.DictReader(stream))


def test_figures_are_those_of_the_page(planted_url: PlantStore, tmp_path: Path) -> None:
    url = planted_url(Planted("base", gpu="NVIDIA H100"), Planted("lean", gpu="NVIDIA H100", reserved_gb=5.0))
    page, rows = report(url, tmp_path)
    for section, columns in CELLS.items():
        for shown in page.table(section):
            row = next(row for row in rows if row["title"] == shown["condition"].removesuffix(" (baseline)"))
            for title, (column, times, exact) in columns.items():
                if cell := shown[title].split()[0].rstrip("%").replace(",", "") if shown[title] else "":
                    assert float(row[column]) * times == pytest.approx(float(cell), rel=exact), (section, title)
                else:
                    assert not row[column]
