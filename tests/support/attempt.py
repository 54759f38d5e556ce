"""One attempt in a folder of its own, with a training script of the test's and a launcher without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import read_json, write_atomically
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.agent.agent import Agent
from dscampaign.jobs.agent.evidence import NodeOutcome
from dscampaign.jobs.agent.node import Node
from dscampaign.jobs.shared.job_array import read_payload, write_payloads
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths, payloads_file
from dscampaign.jobs.shared.payload import Payload

LAUNCHER = Path(__file__).with_name("stub_launcher.py")
PRELUDE = """\
import json, os, signal, sys, time
rank, agent = int(os.environ["RANK"]), int(os.environ["CAMPAIGN_AGENT_PID"])
def report(step):
    if rank == 0:
        with open(os.environ["CAMPAIGN_METRICS_FILE"], "a") as spool:
            spool.write(json.dumps({"step": step, "ts": time.time()}) + "\\n")
"""


def make_payload(folder: Path, **values: Any) -> Payload:
    """An attempt of one node with two ranks that is to make three steps."""
    run = RunPaths(folder / "c" / "runs" / "r")
    defaults: dict[str, Any] = {
        "campaign": "c",
        "run": "r",
        "generation": 1,
        "token": "abc",
        "attempt_id": 1,
        "run_dir": str(run.dir),
        "attempt_dir": str(run.attempt(1).dir),
        "data_dir": str(folder / "data"),
        "config_hash": "hash",
        "nodes": 1,
        "ranks_per_node": 2,
        "gpus_per_node": 0,
        "python": str(LAUNCHER),
        "command": (str(folder / "train.py"), "--depth", "2"),
        "global_batch": 8,
        "micro_batch": 2,
        "accumulation": 2,
        "seed": 42,
        "target_step": 3,
        "steps_decide": False,
        "ds_config": {"train_batch_size": 8},
    }
    return Payload(**{**defaults, **values})


def submitted_payload(batch: Path, index: int) -> Payload:
    """What a task of the batch in that folder is to run."""
    path = payloads_file(batch)
    return read_payload(open_regular(path), path, index)


@dataclass
class Attempt:
    """The attempt and what it leaves behind."""

    folder: Path
    payload: Payload
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def paths(self) -> AttemptPaths:
        return AttemptPaths(Path(self.payload.attempt_dir))

    @property
    def run_paths(self) -> RunPaths:
        return RunPaths(Path(self.payload.run_dir))

    @property
    def batch(self) -> Path:
        return self.folder / "batches" / self.payload.token

    def script(self, text: str) -> None:
        """What every rank runs: knows `rank`, `agent` (its process id) and `report(step)`."""
        (self.folder / "train.py").write_text(PRELUDE + textwrap.dedent(text))

    def change(self, **values: Any) -> None:
        """Another payload."""
        self.payload = replace(self.payload, **values)
        self.prepare()

    def prepare(self) -> None:
        """The folders and files that a submission makes."""
        self.paths.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.batch.mkdir(parents=True, exist_ok=True)
        write_atomically(self.run_paths.current, json.dumps({"generation": self.payload.generation}))
        write_payloads(payloads_file(self.batch), [self.payload])

    def run(self, node_rank: int = 0, job_id: str = "7_0", devices: str = "") -> int:
        """Runs the agent of one node in this process."""
        return Agent(self.payload, Node(job_id, node_rank, f"n{node_rank}", devices)).run()

    def start(self, node_rank: int = 0, job_id: str = "7") -> subprocess.Popen[str]:
        """Starts the agent of one node as Slurm does."""
        slurm = {"SLURM_JOB_ID": job_id, "SLURM_ARRAY_JOB_ID": job_id, "SLURM_ARRAY_TASK_ID": "0"}
        env = {**os.environ, **slurm, "SLURM_NODEID": str(node_rank), "SLURMD_NODENAME": f"n{node_rank}"}
        command = [sys.executable, "-m", "dscampaign.jobs.agent", str(self.batch)]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def outcome(self, node_rank: int = 0) -> NodeOutcome:
        found = NodeOutcome.read(self.paths.outcome(node_rank))
        assert found is not None
        return found

    def record(self, rank: int) -> dict[str, Any]:
        return read_json(self.paths.rank_record(rank)) or {}

    def exits(self) -> dict[int, int | None]:
        return {rank.rank: rank.exit for rank in self.outcome().ranks}
