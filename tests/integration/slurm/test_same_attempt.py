"""A job starts in the campaign's folder and runs its copy of the code, whoever submits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.states import RunState
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.tests.faults.trial import SLURM, STUB
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster

SCRIPT = """
import os, signal
from pathlib import Path
said = open("settings.txt").read() + " VERSION " + Path("setup").read_text()
with open("said.txt", "a") as file:
    file.write(said)
if os.environ["CAMPAIGN_GENERATION"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_job_is_the_same_when_it_is_submitted_from_elsewhere(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "my project", tmp_path / "elsewhere"
    for folder in (project / "pkg", elsewhere):
        folder.mkdir(parents=True)
    (project / "settings.txt").write_text("five")
    (project / "pkg/train.py").write_text(SCRIPT.replace("VERSION", "old"))
    spec = project / "spec.yaml"
    values: dict[str, Any] = {"name": "same", "python": str(STUB), "command": "-m pkg.train", "train": {"steps": 1}}
    values |= {"slurm": {**SLURM, "setup": ["echo here > setup"]}, "ranks_per_node": 1, "retry": {"backoff_s": 0}}
    spec.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(project)
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path / "shared", store)
    first = Reconciler(store, campaign)
    first.run_pass()
    first.close()
    (project / "pkg/train.py").write_text(SCRIPT.replace("VERSION", "new"))
    monkeypatch.chdir(elsewhere)
    done = run_to_end(store, campaign)
    assert set(done.states().values()) == {RunState.COMPLETED}
    assert (project / "said.txt").read_text() == "five old here\n" * 2
    store.close()
