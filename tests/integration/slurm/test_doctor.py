"""`campaign doctor` on a real cluster, whose GPUs exist only in Slurm's configuration: it has to notice."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support import LIGHT
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import HANGS_S, wait_until

Output = pytest.CaptureFixture[str]

SPEC = f"""\
name: fit
ranks_per_node: 2
slurm: {{partition: h100, gpus_per_node: "h100:2", time: 5, mem: 6G}}
env: {{DS_ACCELERATOR: cpu, OMP_NUM_THREADS: 1, PYTHONPATH: {LIGHT}}}
train:
  model: {{model_type: gpt2, n_layer: 1, n_embd: 32, n_head: 1}}
  tokenizer: bytes
  dataset: text.txt
  seq_len: 32
  global_batch: 4
  steps: 3
  precision: fp32
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text\n")
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return path


def verdicts(capsys: Output) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


@pytest.mark.training
def test_a_node_is_looked_at_by_a_job(slurm: SlurmCluster, spec: Path, capsys: Output) -> None:
    code = main(["doctor", str(spec), "--on-node", "--json"])
    found = verdicts(capsys)
    problems = {about for about, check in found.items() if check["verdict"] == "problem"}
    assert (code, problems) == (1, {"gpu.count"}), found
    assert found["gpu.count"]["seen"].startswith("Slurm allocated 2 GPUs, NVML sees none")
    assert found["gpu.count"]["where"] in [f"node {name}" for name in slurm.nodes]
    assert "h100: 4 nodes (gpu:h100:8, 1000000 MB, 128 cores)" in found["slurm.nodes"]["seen"]
    assert "to start at" in found["slurm.submit"]["seen"]
    fine = ["slurm.controller", "slurm.partition", "node.reached"]
    fine += ["folder.file_system", "software.torch", "software.deepspeed", "node.files"]
    assert {about: found[about]["verdict"] for about in fine} == dict.fromkeys(fine, "ok")
    assert "gloo, 2 ranks: right sum" in found["node.all_reduce"]["seen"]
    assert not (spec.parent / "campaign").exists()  # it leaves nothing behind


def test_what_the_cluster_does_not_have(slurm: SlurmCluster, spec: Path, capsys: Output) -> None:
    asked = ["--set", "slurm.gpus_per_node=h10:2", "--set", "slurm.partition=scavenge"]
    assert main(["doctor", str(spec), "--json", *asked]) == 1
    found = verdicts(capsys)
    assert found["slurm.submit"]["verdict"] == "problem"  # by Slurm's own word
    assert "gpu:h100:8" in found["slurm.submit"]["next"]


def test_ctrl_c_cancels_the_job(slurm: SlurmCluster, spec: Path) -> None:
    words = ["doctor", str(spec), "--on-node", "--set", "slurm.begin=now+1hour"]
    command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: slurm.run("squeue", "-h", "-o", "%T") == "PENDING", "the job in the queue")
    process.send_signal(signal.SIGINT)
    assert process.wait(HANGS_S) == 130
    wait_until(lambda: not slurm.run("squeue", "-h", "-t", "pending,running"), "an empty queue")
