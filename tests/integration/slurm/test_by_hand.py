"""What `campaign render` writes does what it says, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.faults.test_submission import write_spec
from dscampaign.tests.support.campaigns import TEXT, observe, open_store, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S, wait_until

pytestmark = pytest.mark.training

SPEC = f"""\
name: by-hand
ranks_per_node: 2
slurm: {{partition: h100, gpus_per_node: 0, time: 5, mem: 6G}}
env: {{DS_ACCELERATOR: cpu, OMP_NUM_THREADS: 1}}
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 32, n_head: 1}}
  tokenizer: bytes
  dataset: {TEXT}
  seq_len: 32
  global_batch: 4
  steps: 3
  precision: fp32
  eval_batches: 1
"""


@pytest.mark.nightly
def test_one_run_by_hand_trains_without_the_store(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    assert main(["render", "spec.yaml", "--output", "run.sbatch", "--dir", str(tmp_path)]) == 0
    job = slurm.run("sbatch", "--parsable", "run.sbatch")
    state = slurm.wait_job(job)
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert state == "COMPLETED", logs
    [spool] = tmp_path.glob("by-hand/by-hand/*/g0001/metrics.jsonl")
    steps = {line["step"] for text in spool.read_text().splitlines() if "step" in (line := json.loads(text))}
    assert {1, 2, 3} <= steps
    assert not (tmp_path / "campaign.db").exists()


def test_the_reconciler_as_a_job_brings_a_campaign_to_its_end(slurm: SlurmCluster, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, runs=2)
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    campaign = submit(spec, tmp_path, store)
    script = tmp_path / "reconcile.sbatch"
    assert main(["render", str(spec), "--reconciler", "--output", str(script), "--dir", str(tmp_path)]) == 0
    job = slurm.run("sbatch", "--parsable", str(script))
    wait_until(
        lambda: set(observe(store, campaign).states().values()) == {RunState.COMPLETED},
        "the campaign",
        timeout_s=CAMPAIGN_HANGS_S,
    )
    assert slurm.wait_job(job) == "COMPLETED"
    assert "2 completed" in (tmp_path / "reconcile.log").read_text()
    store.close()
