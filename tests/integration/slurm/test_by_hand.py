"""What `campaign render` writes does what it says, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.campaigns import TEXT
from dscampaign.tests.support.slurm_cluster import SlurmCluster

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
