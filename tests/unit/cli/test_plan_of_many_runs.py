"""A plan of more runs than anybody reads is summed up; what is special in it keeps its row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.pages.plan import plan_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.load import load_spec

SPEC = """\
name: sweep
command: train.py --seed {seed} --size {size}
max_runs: 1000
train: {steps: 100}
slurm: {gpus_per_node: 8, time: 60}
repeats: 3
matrix:
  size: [1, 2, 3, 4, 5]
  train.lr: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "train.py").write_text("# reads CAMPAIGN_DS_CONFIG")
    (tmp_path / "sweep.yaml").write_text(SPEC)
    return tmp_path / "sweep.yaml"


def test_of_many_runs_the_first_are_shown(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "sweep.yaml"]) == 0
    text = capsys.readouterr().out
    assert sum(line.startswith("+  size-") for line in text.splitlines()) == 7  # each with its repeats
    assert "… and 130 more runs: `campaign plan sweep.yaml --all`" in text
    assert "Plan: 150 to submit" in text


def test_rows_that_are_not_like_all_others_are_shown(spec: Path) -> None:
    runs = expand(load_spec(spec))
    items = [PlannedRun(Sign.CREATE, run.name, "", run, run.micro_batch) for run in runs]
    items[7] = replace(items[7], sign=Sign.RESUBMIT, why="crashed")
    items[90] = replace(items[90], sign=Sign.KEEP, differing=("slurm.time: 60 → 90",))
    items.append(PlannedRun(Sign.CANCEL, "old", "no longer in the spec"))
    lines = plan_page(Plan("sweep", "slurm", tuple(items)), Page()).splitlines()
    text = "\n".join(lines)
    assert [name in text for name in (items[7].name, items[90].name, "old", "crashed")] == [True] * 4
    assert "… and 131 more runs: `campaign plan SPEC --all`" in text
