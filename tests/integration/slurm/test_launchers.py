"""Launchers on two real nodes: a rank is killed, and the run goes on from its checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.db.states import RunState
from dscampaign.jobs.agent.evidence import NodeOutcome
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.orchestrator.executors.job_request import attempt_paths
from dscampaign.tests.faults.trial import SLURM
from dscampaign.tests.support.campaigns import open_store, run_to_end, submit
from dscampaign.tests.support.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.training

SCRIPT = """
import os, signal, time
import re
from pathlib import Path
import torch
import torch.distributed as dist
from dscampaign import report

dist.init_process_group("gloo")
rank, first = dist.get_rank(), os.environ["CAMPAIGN_GENERATION"] == "1"
places = [os.environ[name] for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK", "SLURM_LOCALID", "SLURM_NTASKS")]
assert places == [str(rank), str(rank), str(rank % 2), str(rank % 2), str(dist.get_world_size())], places
saved = Path(os.environ["CAMPAIGN_CHECKPOINT_DIR"], "step")
done = int(saved.read_text()) if saved.exists() else 0
print("rank", rank, "begins after", done, os.environ.get("ACCELERATE_MIXED_PRECISION"), flush=True)
for step in range(done + 1, 5):
    total = torch.ones(1)
    dist.all_reduce(total)
    report(step, loss=float(total))
    if rank == 0:
        saved.write_text(str(step))
    dist.barrier()
    if first and step == 2:
        os.kill(os.getpid(), signal.SIGKILL) if rank == 3 else time.sleep(600)
dist.destroy_process_group()
"""
LINES = {
    "torchrun": "torchrun --nproc_per_node 2 --max_restarts 5 train.py",
    "accelerate": "accelerate launch --config_file accelerate.yaml train.py",
    "srun": "srun python train.py",
}


def test_a_killed_rank_and_a_resume(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    configured = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "mixed_precision": "bf16"}
    (tmp_path / "accelerate.yaml").write_text(yaml.safe_dump({**configured, "num_processes": 1, "num_machines": 1}))
    spec = tmp_path / "spec.yaml"
    points = [{"label": name, "command": line} for name, line in LINES.items()]
    values: dict[str, Any] = {"name": "launchers", "slurm": {**SLURM, "nodes": 2, "mem": "6G"}, "ranks_per_node": 2}
    values |= {"train": {"steps": 4}, "retry": {"backoff_s": 0}, "matrix": {"include": points}}
    spec.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/campaign.db")
    done = run_to_end(store, submit(spec, tmp_path / "shared", store))
    assert done.states() == dict.fromkeys(LINES, RunState.COMPLETED), [run.reason for run in done.runs.values()]
    for name in LINES:
        first, last = done.attempts[name]
        assert (first.failure_class, last.failure_class) == ("crash", "completed"), first.evidence
        # "rank 3" or "one of ranks 2, 3"; a launcher may be ended before it names the signal
        assert re.search("3 (was killed by SIGKILL|left no record)", first.evidence["reason"]), name
        assert [row.loss for row in done.metrics(name)] == [4.0] * 4
        paths = attempt_paths(last)
        begun = "begins after 2 " + ("bf16" if name == "accelerate" else "None")
        assert all(begun in _log(paths, rank) for rank in range(4)), name
        killed = [NodeOutcome.read(attempt_paths(first).outcome(node)) for node in (0, 1)]
        assert [rank.rank for node in killed if node for rank in node.ranks] == [0, 1, 2, 3]
    store.close()


def _log(paths: AttemptPaths, rank: int) -> str:
    (log,) = paths.logs.glob(f"*_rank{rank}.log")
    return log.read_text()
