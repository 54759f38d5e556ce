"""Every table and figure of the five published comparisons, in kind: their templates, with planted results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.records import OPENED_ELSEWHERE, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli import main

from ...campaigns import submit
from .planted import Planted, Try, plant_run

STEPS = 60


@dataclass(frozen=True)
class Page:
    """A report, read back from its Markdown and its JSON."""

    folder: Path

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def figures(self) -> set[str]:
        return {path.stem for path in (self.folder / "figures").glob("*.png")}

    def table(self, section: str) -> list[dict[str, str]]:
        """The first table of the section that begins with these words."""
        _, _, rest = (self.folder / "report.md").read_text().partition(f"\n## {section}")
        assert rest, f"no section {section}"
        lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
        header, _, *rows = ([cell.strip().replace("\\", "") for cell in line.split(" | ")] for line in lines)
        header[0], header[-1] = header[0].lstrip("| "), header[-1].rstrip(" |")
        whole = []
        for row in rows:
            if len(row) != len(header):
                break  # the next table
            row[0], row[-1] = row[0].lstrip("| "), row[-1].rstrip(" |")
            whole.append(dict(zip(header, row, strict=True)))
        return whole

    def text(self, section: str) -> str:
        _, _, rest = (self.folder / "report.md").read_text().partition(f"\n## {section}")
        return rest.partition("\n## ")[0]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The report of each template."""
    return {name: _report(name, tmp_path_factory.mktemp(name)) for name in TEMPLATES}


TEMPLATES = ("loss-verification", "zero-precision-matrix", "five-strategies", "gpu-telemetry", "zero-and-offload")


def _report(name: str, folder: Path) -> Page:
    spec = folder / "spec.yaml"
    assert main(["init", str(spec), "--from", name, "--scale", "smoke"]) == 0
    url = f"sqlite:///{folder}/campaign.db"
    store = Store.open(url, create=True)
    campaign = submit(spec, folder, store)
    with store.read() as conn:
        runs = queries.runs(conn, campaign.id)
    for run in runs:
        plant_run(store, folder, _results(run, len(runs)), run)
        with store.write() as conn:
            data = {"tool": "wandb", "run_id": f"wandb-{run.id}"}
            queries.add_event(conn, campaign.id, OPENED_ELSEWHERE, "opened", run_id=run.id, data=data)
    store.close()
    assert main(["report", name, "--store", url, "-o", str(folder / "out")]) == 0
    return Page(folder / "out")


def _results(run: RunRow, runs: int) -> Planted:
    """The higher the stage the slower and the smaller; offload more so."""
    stage, offloaded = run.config["train"]["zero_stage"], run.config["train"]["offload"] != "none"
    step_s = (0.1 + 0.05 * stage) * (3 if offloaded else 1) * (0.8 if run.config["train"]["compile"] else 1)
    step_s *= 2 if runs < 10 else 1  # energy takes ten seconds of steps
    repeats = run.repeat + 1
    return Planted(
        run.name,
        step_s=tuple(step_s * (1 + 0.001 * repeat) for repeat in range(repeats)),
        held_out=tuple(3.0 + 0.001 * repeat for repeat in range(repeats)),
        reserved_gb=30.0 - 5 * stage - (4 if offloaded else 0),
        steps=STEPS,
        tries=(Try(last=STEPS),),
        gpu="NVIDIA H100 80GB HBM3" if runs < 10 or run.repeat == 0 else "",
    )


def test_loss_verification(pages: dict[str, Page]) -> None:
    """Six conditions with their status; final and best losses; iteration times; memory; data points; advice; logs."""
    page = pages["loss-verification"]
    conditions = page.table("Conditions")
    assert len(conditions) == 6
    assert {row["completed"] for row in conditions} == {"3/3"}
    assert {"loss", "step_time", "memory"} <= page.figures()
    assert {"final", "best step"} <= page.table("Loss")[0].keys()
    assert {"step ms", "± repeats", "steps timed", "warm-up steps"} <= page.table("Speed")[0].keys()
    assert {row["received"] for row in page.table("Data quality")} == {str(STEPS)}
    assert "Use " in page.text("Recommendation")
    assert "g0001/logs" in page.text("Environment")
    assert page.text("Environment").count("wandb-") == 18
    setup = page.table("Set-up")[0]
    assert {"parameters", "batch", "length", "precision"} <= setup.keys()


def test_zero_precision_matrix(pages: dict[str, Page]) -> None:
    """Eight experiments: median and deviation of tokens/s and step time, peak memory, utilisation."""
    page = pages["zero-precision-matrix"]
    speed = page.table("Speed")
    assert len(speed) == 8
    assert all(row["± repeats"] for row in speed)
    assert {"tokens/s", "step ms"} <= speed[0].keys()
    assert all(row["reserved"] for row in page.table("Memory"))
    assert {row["utilisation"] for row in page.table("GPUs")} == {"90 %"}
    assert "570.124.06" in page.text("Environment")


def test_five_strategies(pages: dict[str, Page]) -> None:
    """Two models, each with its own baseline: model, parameters, memory beside the baseline, speed-up, losses."""
    page = pages["five-strategies"]
    document = page.document
    assert len(document["workloads"]) == 2
    medium = document["workloads"][0]
    assert "ddp" in medium["baseline"]
    ratios = {one["name"]: one["times_baseline"]["value"] for one in medium["conditions"]}
    assert len(ratios) == 3
    assert all(row["parameters"] == "124M" for row in page.table("Set-up"))
    assert any(row["beside baseline"].startswith("-") for row in page.table("Memory"))
    assert len(page.table("Loss")) == 5


def test_gpu_telemetry(pages: dict[str, Page]) -> None:
    """The machine, throughput, momentary against mean power over time, and temperature under load."""
    page = pages["gpu-telemetry"]
    assert "gpus" in page.figures()
    (row,) = page.table("GPUs")
    assert (row["peak"], row["peak over 1 s"], row["hottest"][-2:]) == ("400 W", "320 W", "°C")
    assert row["J/token"]
    assert page.table("Speed")[0]["tokens/s"]
    for fact in ("NVIDIA H100", "570.124.06", "12.8", "2.11.0"):
        assert fact in page.text("Environment")


def test_zero_and_offload(pages: dict[str, Page]) -> None:
    """GPU and host memory, time, tokens/s and a recommendation with its reasons for each model, batch and length."""
    page = pages["zero-and-offload"]
    workloads = page.document["workloads"]
    assert len(workloads) >= 4
    assert all(one["recommendation"]["sentence"] for one in workloads)
    memory = page.table("Memory")
    assert {"reserved", "host"} <= memory[0].keys()
    assert {row["host"] for row in memory} == {"12.0 GB"}
    guided = [sentence for one in workloads for sentence in one["recommendation"]["guide"]]
    assert any("× the speed" in sentence for sentence in guided)
