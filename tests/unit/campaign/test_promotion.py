"""The spec of a longer run: what it keeps of the campaign's, and what it says of the number of steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.promotion import Promotion, promote
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.spec_files import load_runs

SPEC = """\
# Stages of ZeRO.
name: sweep
executor: local
env: {KEY: "${KEY}", CASE: a}
train:
  model: gpt2        # 124M
  tokenizer: bytes
  dataset: ./text.txt
  global_batch: 8
  epochs: 1          # once
  warmup_steps: 10

# Which stage?
matrix:
  zero_stage: [1, 3]
  env.CASE: [a, "1e-4"]
  include:
    - {zero_stage: 3, deepspeed.zero_optimization.overlap_comm: true}
repeats: 3
"""


@pytest.fixture(autouse=True)
def _inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "value")
    (tmp_path / "text.txt").write_text("text")
    script = tmp_path / "train.py"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)


def submitted(folder: Path, text: str, *sets: str) -> tuple[CampaignRow, dict[str, RunRow]]:
    path = folder / "spec.yaml"
    path.write_text(text)
    store = Store.open(f"sqlite:///{folder}/campaign.db", create=True)
    spec, runs = load_runs(path, sets)
    told = "".join([text, *(f"# --set {one}\n" for one in sets)])
    campaign = record(store, Submission(spec, told, runs, folder / "campaigns", path))
    with store.read() as conn:
        rows = {row.name: row for row in queries.runs(conn, campaign.id)}
    store.close()
    return campaign, rows


def promoted(folder: Path, text: str, name: str, *sets: str, out: str = "long.yaml", steps: int = 5000) -> Promotion:
    campaign, rows = submitted(folder, text, *sets)
    return promote(campaign, name, rows[name], steps, folder / out)


def test_the_condition_is_fixed_and_everything_else_stays(tmp_path: Path) -> None:
    made = promoted(tmp_path, SPEC, "zero_stage-3_CASE-1e-4")
    assert (
        made.text
        == """\
# zero_stage-3_CASE-1e-4 of the campaign sweep, for 5,000 steps: by `campaign promote`.

name: sweep-5000-steps
executor: local
env:
  KEY: ${KEY}
  CASE: '1e-4'
train:
  model: gpt2
  tokenizer: bytes
  dataset: ./text.txt
  global_batch: 8
  warmup_steps: 10
  zero_stage: 3
  steps: 5000
deepspeed:
  zero_optimization:
    overlap_comm: true
"""
    )
    assert made.run.target_step == 5000
    assert "train.zero_stage: 3" in made.fixed


def test_the_run_is_the_condition_s_but_for_its_length(tmp_path: Path) -> None:
    campaign, rows = submitted(tmp_path, SPEC)
    for name, row in rows.items():
        if row.repeat:
            continue
        run = promote(campaign, name, row, 5000, tmp_path / "long.yaml").run
        lengths = {"steps": 5000, "epochs": None}
        before, after = ({**c, "train": {**c["train"], **lengths}} for c in (row.config, run.stored_config))
        assert before == after


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="not beside the campaign's spec") as refused:
        promoted(tmp_path, SPEC, "zero_stage-1_CASE-a", out="there/long.yaml")
    assert refused.value.hint == f"name a file there: --output {tmp_path}/long.yaml"


def test_notes_name_the_effects_of_the_number_of_steps(tmp_path: Path) -> None:
    text = SPEC.replace("epochs: 1          # once", "steps: 100")
    campaign, rows = submitted(tmp_path, text)
    made = promote(campaign, "c", rows["zero_stage-1_CASE-a"], 5000, tmp_path / "x.yaml")
    assert [note.partition(":")[0] for note in made.notes] == ["learning rate"]
    assert "cosine schedule stretches over 5,000 steps instead of 100" in made.notes[0]


def test_a_command_with_the_number_of_steps_is_no_other_difference(tmp_path: Path) -> None:
    spec = "{name: c, executor: local, train: {steps: 9}, matrix: {rate: [1, 2]}, command: %s}"
    made = promoted(tmp_path, spec % "'train.py --n {steps} --lr {rate}'", "rate-1")
    assert (list(made.run.config.command or ())[1:], made.notes) == (["--n", "5000", "--lr", "1"], ())


def test_a_condition_that_the_spec_has_no_longer_is_refused(tmp_path: Path) -> None:
    campaign, rows = submitted(tmp_path, SPEC)
    gone = rows["zero_stage-1_CASE-a"]
    with pytest.raises(UserError, match="no longer has the condition c"):
        promote(campaign, "c", replace(gone, params={"zero_stage": 2}), 5000, tmp_path / "x.yaml")
