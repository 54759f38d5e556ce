"""Every table and figure of the published comparisons, in kind: their templates, with planted results."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import OPENED_ELSEWHERE, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.campaigns import submit
from dscampaign.tests.support.planted import Planted, Try, plant_run
from dscampaign.tests.support.report_documents import PER_WORKLOAD, SECTIONS, TEMPLATES
from dscampaign.tests.support.report_page import Page

STEPS = 60
LENGTHS = {64, 128}
"""Tokens of a sample in the smoke scales."""


class _Pages(dict[str, Page]):
    """The report of each template that a test asks for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, name: str) -> Page:
        self[name] = _report(name, self._folders.mktemp(name))
        return self[name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The report of each template."""
    return _Pages(tmp_path_factory)


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
    assert main(["report", name, "--store", url, "--output", str(folder / "out")]) == 0
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
        tries=(Try(last=STEPS, micro_batch=run.config["train"]["micro_batch"]),),
        gpu="NVIDIA H100 80GB HBM3" if runs < 10 or run.repeat == 0 else "",
        speed={"data_wait_share": 0.02},
    )


_COLUMNS = (
    *("first_loss.value", "final_loss.value", "best_loss.value", "held_out.value", "loss_reduction.value"),
    *("step_s.value", "step_std_s.value", "step_p99_s.value", "tokens_per_s.value", "mfu.value", "ranks"),
    "steps_timed",
    *("mem_allocated_gb", "mem_peak_reserved_gb", "mem_usable_gb", "mem_share"),
    *("gpu_power_w.value", "gpu_power_peak_w.value", "gpu_power_avg_peak_w.value", "gpu_temperature_c.value"),
    *("gpu_samples.value", "energy_j.value"),
)
"""Of conditions.csv: what the tables of losses, speed, memory and GPUs have of every condition."""

LARGE = {"llama-sizes", "deepspeed-knobs"}
every_template = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in LARGE else ()) for name in TEMPLATES]
)


@every_template
def test_every_table_of_the_document_is_there_and_filled(pages: dict[str, Page], name: str) -> None:
    page = pages[name]
    for section, columns in SECTIONS.items():
        table = next(page.table(title) for title in page.sections if title == section)
        assert table
        for row in table:
            assert columns <= row.keys(), section
            assert all(row[column] for column in columns), (section, row)
    conditions = sum(len(workload["conditions"]) for workload in page.workloads)
    assert len(page.table("How fast")) == len(page.table("Does it fit")) == conditions
    assert set(page.tables("Set-up")[0].header) >= TEMPLATES[name]


@every_template
def test_every_figure_is_drawn_named_and_shown(pages: dict[str, Page], name: str) -> None:
    page = pages[name]
    expected = set[str]()
    for number, workload in enumerate(page.workloads, 1):
        drawn = [kind for kind in PER_WORKLOAD if kind == "loss" or len(workload["conditions"]) > 1]
        for kind, words in ((kind, PER_WORKLOAD[kind]) for kind in drawn):
            figure = kind if len(page.workloads) == 1 else f"{kind}_{number}"
            expected.add(figure)
            assert words <= page.words(figure)
    assert expected <= page.figures() <= expected | {one for one in page.figures() if one.startswith("along")}
    assert set(re.findall(r"!\[[^]]*\]\(figures/(\w+)\.svg\)", page.markdown)) == page.figures()
    assert set(re.findall(r'class="chart" id="chart-(\w+)"', page.html)) == page.figures()


@every_template
def test_mfu_can_be_calculated_again(pages: dict[str, Page], name: str) -> None:
    for run in pages[name].document["runs"]:
        of = run["mfu_inputs"]
        flops = of["flops_per_token"]
        assert (flops - 6 * of["parameters"]) / (12 * of["layers"] * of["width"]) in LENGTHS
        again = run["timing"]["tokens_per_s"] / run["world_size"] * flops / of["peak_flops"]
        assert again == pytest.approx(run["timing"]["mfu"], rel=5e-3)


@every_template
def test_environment_says_software_machines_and_places(pages: dict[str, Page], name: str) -> None:
    page = pages[name]
    for fact in ("NVIDIA H100", "570.124.06", "12.8", "2.11.0", "0.19.8"):
        assert fact in page.text("Environment")
    (machine,) = page.table("Environment", 2)
    assert (machine["node"], machine["GPU"]) == ("n0", "NVIDIA H100 80GB HBM3")
    assert machine["CPU"] == "Intel Xeon Platinum 8480+"
    assert all(run["forwarded"]["wandb"].startswith("wandb-") for run in page.document["runs"])


def test_loss_verification(pages: dict[str, Page]) -> None:
    """Six conditions with their status; data points; losses."""
    page = pages["loss-verification"]
    learned = page.table("Same learning")
    assert len(learned) == len(page.table("Set-up")) == 6
    runs = page.document["runs"]
    assert {(run["state"], run["quality"]["received"]) for run in runs} == {("completed", STEPS)}
    assert {row["repeats"] for row in page.table("How fast")} == {"3"}
    assert page.markdown.startswith("# Use ")
    for row in learned:
        assert float(row["lowest loss"]) < float(row["final"]) < float(row["first"])
        share = 1 - float(row["final"]) / float(row["first"])
        assert float(row["reduction"].removesuffix("%")) == pytest.approx(100 * share, abs=0.2)


def test_zero_precision_matrix(pages: dict[str, Page]) -> None:
    """Eight experiments: tokens/s and step time, peak memory, utilisation."""
    page = pages["zero-precision-matrix"]
    speed = page.table("How fast")
    assert len(speed) == len(page.table("Does it fit")) == 8
    for row in speed:
        assert float(row["samples/s"]) == pytest.approx(1e3 * 32 / float(row["step (ms)"]), rel=0.02)
    assert {row["utilisation (%)"] for row in page.table("What did the GPUs")} == {"90"}


def test_five_strategies(pages: dict[str, Page]) -> None:
    """Two models, each with its own baseline: model, parameters, memory beside the baseline, speed-up, losses."""
    page = pages["five-strategies"]
    assert len(page.workloads) == 2
    medium = page.workloads[0]
    assert "ddp" in medium["baseline"]
    ratios = {one["name"]: one["times_baseline"]["value"] for one in medium["conditions"]}
    assert len(ratios) == 3
    common = {row["in all conditions"]: row["value"] for row in page.table("Set-up", 1)}
    assert common["parameters"] == "124M"
    assert common["samples"]
    assert common["model.model_type"] == "gpt2"
    assert [row["offload"] for row in page.table("Set-up")].count("optimizer") == 1
    assert any(row["beside baseline"].startswith("-") for row in page.table("Does it fit"))
    assert len(page.table("Same learning")) == 5


def test_gpu_telemetry(pages: dict[str, Page]) -> None:
    """The machine, throughput, momentary against mean power over time, and temperature under load."""
    page = pages["gpu-telemetry"]
    (row,) = page.table("What did the GPUs")
    assert (row["peak over 1 s (W)"], row["hottest (°C)"]) == ("320", "60")
    assert row["J/token"]
    used = page.document["runs"][0]["gpus"]
    assert (used["power_peak_w"], used["power_avg_peak_w"], used["temperature_c"]) == (400, 320, 60)


def test_zero_and_offload(pages: dict[str, Page]) -> None:
    """GPU and host memory, time, tokens/s and a recommendation with its reasons for each model, batch and length."""
    page = pages["zero-and-offload"]
    assert len(page.workloads) == 4
    assert all(one["recommendation"]["sentence"] for one in page.workloads)
    assert {row["host (GB)"] for row in page.table("Does it fit")} == {"12.0"}
    effects = [effect for one in page.workloads for effect in one["effects"]]
    assert {effect["proven"]["speed"] for effect in effects if effect["speed"]["low"]} <= {True, False}
    assert all(len(effect["loss"]) == len(effect["pairs"]) for effect in effects)
    assert any("× the speed" in row["speed"] for row in page.table("What does each setting do"))


def test_five_strategies_next(pages: dict[str, Page]) -> None:
    """Three models; what computing activations again costs."""
    page = pages["five-strategies-next"]
    assert len(page.workloads) == 3
    setup = {row["condition"]: row for row in page.table("Set-up")}
    alike = [_without_name(setup[name]) for name in ("xl-zero3", "xl-zero3-recomputed")]
    assert [row.pop("activation_checkpointing") for row in alike] == ["no", "yes"]
    assert alike[0] == alike[1]


def _without_name(row: dict[str, str]) -> dict[str, str]:
    return {column: cell for column, cell in row.items() if column != "condition"}


@every_template
def test_rows_of_conditions_have_every_figure_that_is_known(pages: dict[str, Page], name: str) -> None:
    with (pages[name].folder / "conditions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == sum(len(one["conditions"]) for one in pages[name].workloads)
    for row in rows:
        for column in ("mem_reserved_gb", "mem_device_gb", "mem_host_gb", "gpu_util_pct.value", "samples_per_s.value"):
            assert float(row[column]) > 0
        for column in _COLUMNS:
            assert float(row[column]) > 0, column
    columns = rows[0].keys()
    assert not [each for each in columns if any(other.startswith(f"{each}.") for other in columns)]
