"""What is shown of an attempt's GPUs, and their samples as a table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.gpu_records import AttemptGpus, GpuUse, TokenEnergy
from dscampaign.db.ingest.attempt import GpuSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.pages.describe import gpu_lines
from dscampaign.tests.support.cli_world import World, make_world

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


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return make_world(tmp_path)


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
