"""What is shown of an attempt: speed, GPUs, other tools that have it, and its end by the bounds of the spec."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.gpu_records import AttemptGpus, GpuUse, TokenEnergy
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import EventRow, kept_every
from dscampaign.orchestrator.campaign.documents import speed_document
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.pages.describe import gpu_lines
from dscampaign.tests.support.cli_world import World

Output = pytest.CaptureFixture[str]

GPU = GpuUse(
    node_rank=0,
    gpu=0,
    node="n1",
    name="NVIDIA H200",
    samples=100,
    from_s=1000.0,
    to_s=1100.0,
    util_pct=93.0,
    power_w=529.0,
    power_peak_w=698.4,
    power_avg_w=531.0,
    power_avg_peak_w=651.2,
    energy_j=52_900.0,
    temperature_max_c=64.0,
    mem_used_max_gb=40.0,
    slowed=0.0,
    power_capped=0.41,
    ecc_errors=0,
)
OTHER = replace(GPU, gpu=1, util_pct=95.0, power_w=540.0, energy_j=54_000.0, temperature_max_c=66.0, slowed=0.031)
USED = AttemptGpus(1, (GPU, OTHER), TokenEnergy(20, 400, 38.0, 40_000.0, 3_000_000.0))


def sampled(world: World, run: str = "done", nodes: int = 2) -> None:
    """A hundred seconds of two GPUs a node at 529 W and 540 W, and a step a second."""
    for node in range(nodes):
        devices = [{"gpu": gpu, "name": "NVIDIA H200"} for gpu in (0, 1)]
        lines: list[dict[str, Any]] = [{"devices": devices, "node": f"n{node}"}]
        for ts in range(101):
            joules = [529.0 * ts, 540.0 * ts]
            lines.append({"ts": 1000 + ts, "span_s": 1, "gpu": [0, 1], "power_w": [529, 540], "energy_j": joules})
        spool = world.attempt_paths(run).gpu_spool(node)
        spool.write_text("".join(json.dumps(line) + "\n" for line in lines))
        ingest(world.store, GpuSpool(1, spool, node))


def test_an_attempt_s_gpus_are_two_lines() -> None:
    gpus, energy = gpu_lines(USED)
    assert gpus == "gpus: 2 × NVIDIA H200, 94 % busy, 1,069 W, at most 66 °C"
    held = "at its power limit 41 % of the time, slowed down 3.1 % of the time"
    assert energy == f"energy: 106.9 kJ, 0.0133 J/token over steps 21 to 400, {held}"


def test_describe_shows_gpus_and_energy(world: World, capsys: Output) -> None:
    sampled(world)
    assert main(["describe", "sweep", "done"]) == 0
    page = capsys.readouterr().out
    assert "gpus: 4 × NVIDIA H200, 2,138 W\n" in page
    assert "energy: 213.8 kJ\n" in page
    assert main(["describe", "sweep", "done", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["gpus"] == {"energy_j": pytest.approx(213_800.0), "j_per_token": None}
    assert len(found["attempts"][0]["gpus"]["gpus"]) == 4


def test_export_of_gpus_has_a_row_for_each_sample(world: World, capsys: Output) -> None:
    sampled(world, nodes=1)
    assert main(["export", "sweep", "--what", "gpus"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 202
    first = {name: rows[0][name] for name in ("run", "generation", "node", "gpu", "ts_s", "power_w", "util_pct")}
    assert list(first.values()) == ["done", "1", "n0", "0", "1000.0", "529.0", ""]


SAID: dict[str, Any] = {
    "steps": 80,
    "warm_up_steps": 20,
    "warm_up_s": 14.21,
    "step_time_median_s": 0.0205,
    "step_time_iqr_s": 0.0003,
    "tokens_per_s": 1_600_000.0,
    "tokens_per_s_per_gpu": 400_000.0,
    "mfu": 0.348,
    "data_wait_share": 0.0001,
    "alloc_retries": 0,
    "device": "NVIDIA H100 80GB HBM3",
}


def events(*said: dict[str, Any], kind: str = "script.speed") -> list[EventRow]:
    return [EventRow(place, 1, 1, 7, 10.0, kind, "", data) for place, data in enumerate(said)]


@pytest.mark.parametrize("said", [{}, {"tokens_per_s": "many"}, {"tokens_per_s": float("nan")}, {"steps": 3}])
def test_a_script_may_say_anything_of_its_speed(said: dict[str, Any]) -> None:
    assert speed_document(events(said), 7) is None
    document = speed_document(events({**said, "tokens_per_s": 5, "mfu": [1], "steps": None}), 7)
    assert document == {"tokens_per_s": 5.0}


URL = "https://wandb.example.org/t/sweep/runs/abc"


@pytest.fixture
def forwarded(world: World) -> World:
    """A campaign of which one run was opened twice in W&B, as attempts do, and once in MLflow."""
    for tool, run_id, where in (("wandb", "abc", "/offline"), ("mlflow", "m1", "sqlite:///x"), ("wandb", "abc", URL)):
        data = {"tool": tool, "run_id": run_id, "where": where}
        with world.store.write() as conn:
            queries.add_event(
                conn, world.campaign_id, "forward.opened", f"{tool}: {run_id}", run_id=world.run_id("done"), data=data
            )
    return world


@pytest.mark.usefixtures("forwarded")
def test_the_page_of_a_run_says_where_else_it_is(capsys: Output) -> None:
    assert main(["describe", "sweep", "done"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["wandb", f"run abc, {URL}"] in lines
    assert ["mlflow", "run m1, sqlite:///x"] in lines


NOTED = {"pruned": "a step takes 1.5 s, longer than prune.step_time_s = 1"}
"""As the reconciler notes it, from when it cancels the job until that has ended."""


@pytest.mark.parametrize("command", [["describe", "sweep", "small"], ["report", "sweep"], ["recommend", "sweep"]])
def test_a_run_that_is_being_pruned_is_shown(command: list[str], world: World) -> None:
    with world.store.read() as conn:
        attempt = queries.attempts(conn, world.campaign_id, world.run_id("small"))[-1]
    world.set_attempt(attempt.id, evidence=NOTED)
    assert main(command) == 0


def test_a_run_that_is_being_pruned_is_not_taken_for_thinned() -> None:
    assert kept_every([NOTED, {}]) == 1
    assert kept_every([NOTED, {"pruned": {"keep_every": 5}}]) == 5
