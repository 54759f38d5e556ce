"""`campaign db prune` of a kept campaign: what is said of it, what stays exact, and how far the rest moves."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dscampaign import jobs
from dscampaign.orchestrator.cli.main import main

KEPT = Path(jobs.__file__).parents[1] / "benchmarks/results/gpu-telemetry-h100x2/campaign.db.gz"
STORE = ("--store", "sqlite:///campaign.db")
TO_FIFTHS = ("db", "prune", "--keep-every", "5", "--after-days", "0", *STORE)
EXACT = ("gpus", "memory", "steps", "state")
LOSSES = ("first", "best", "final", "held_out")
APPROXIMATE = ("step_s", "tokens_per_s", "mfu", "mean_s")

Output = pytest.CaptureFixture[str]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of three runs of 1,500 steps with the telemetry of two GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "campaign.db"
    file.write_bytes(gzip.decompress(KEPT.read_bytes()))
    assert main(["db", "upgrade", *STORE]) == 0
    return file


def runs_of_report(folder: str) -> list[dict[str, Any]]:
    assert main(["report", "gpu-telemetry", *STORE, "--output", folder]) == 0
    document: dict[str, Any] = json.loads(Path(folder, "report.json").read_text())
    return list(document["runs"])


def rows(file: Path) -> tuple[int, ...]:
    with closing(sqlite3.connect(file)) as conn:
        tables = ("step_metric", "metric_extra", "gpu_sample")
        return tuple(conn.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)


def test_what_gpus_did_stays_exact_and_speed_moves_by_less_than_a_fiftieth(store: Path, capsys: Output) -> None:
    before = runs_of_report("before")
    assert main([*TO_FIFTHS, "--yes"]) == 0
    after = runs_of_report("after")
    assert [run["quality"]["kept_every"] for run in after] == [5, 5, 5]
    for was, now in zip(before, after, strict=True):
        assert {name: now[name] for name in EXACT if name in now} == {name: was[name] for name in EXACT if name in was}
        assert {name: now["loss"][name] for name in LOSSES} == {name: was["loss"][name] for name in LOSSES}
        assert now["quality"]["received"] == was["quality"]["received"]
        for name in APPROXIMATE:
            assert now["timing"][name] == pytest.approx(was["timing"][name], rel=0.02)
        assert [remark for remark in now["remarks"] if "thinned" in remark] == [
            "thinned: one step in 5 is left, and stands for the others"
        ]
    capsys.readouterr()
    assert main(["export", "gpu-telemetry", *STORE, "--output", "steps.csv"]) == 0
    assert "3 runs thinned: as few as 1 row in 5 is left" in capsys.readouterr().err
    assert main(["describe", "gpu-telemetry", before[0]["name"], *STORE]) == 0
    assert "thinned: one step in 5 is left" in capsys.readouterr().out


def test_nothing_goes_without_a_word_of_the_user_s(store: Path, capsys: Output) -> None:
    whole = rows(store)
    assert main(["db", "prune", *STORE]) == 2
    assert "hint: give --keep-every 10, or set `retention: {keep_every: 10}` in the spec" in capsys.readouterr().err
    assert main([*TO_FIFTHS, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("gpu-telemetry: 3 runs, one step in 5 stays, ")
    assert main([*TO_FIFTHS]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert main(["db", "prune", "--keep-every", "5", "--after-days", "36500", *STORE, "--yes"]) == 0
    assert capsys.readouterr().out == "nothing to thin\n"
    assert rows(store) == whole


def test_the_rule_of_the_spec_is_used_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    Path("train.py").touch()
    common = "executor: local\npython: /bin/false\nranks_per_node: 1\ncommand: train.py\ntrain: {steps: 1}\n"
    for name, rule in {"kept": "", "thinned": "retention: {keep_every: 7, after_days: 0}\n"}.items():
        Path(f"{name}.yaml").write_text(f"name: {name}\n{common}{rule}retry: {{crash: 0}}\n")
        assert main(["submit", f"{name}.yaml", "--watch"]) == 1
    capsys.readouterr()
    assert main(["db", "prune", "--dry-run"]) == 0
    assert capsys.readouterr().out == "nothing to thin\n"  # they have no steps
    assert main(["db", "prune", "kept", "--dry-run"]) == 2
    assert "no rule for the old metrics of kept" in capsys.readouterr().err
    assert main(["db", "prune", "thinned", "--dry-run"]) == 0
