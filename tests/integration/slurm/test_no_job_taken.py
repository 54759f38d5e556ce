"""What a real Slurm says while it takes no jobs, and what a user's variables do to its commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor.check_slurm import Preflight
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.executors.base import JobArray
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import wait_until


def batch(folder: Path) -> JobArray:
    folder.mkdir()
    return JobArray("t.one", folder, 1, {"partition": "h100", "mem": "1G", "time": "5"})


def runs(**slurm: Any) -> tuple[Run, ...]:
    return expand(Spec.model_validate({"name": "x", "command": ["a.py"], "slurm": {"gpus_per_node": 0, **slurm}}))


@contextmanager
def updated(slurm: SlurmCluster, what: str, state: str, back: str) -> Iterator[None]:
    slurm.run("scontrol", "update", what, f"State={state}", *(["Reason=test"] if "Node" in what else []))
    try:
        yield
    finally:
        slurm.run("scontrol", "update", what, f"State={back}")


@pytest.mark.parametrize("state", ["DRAIN", "INACTIVE"])
def test_a_partition_that_takes_no_jobs_leaves_none_open(slurm: SlurmCluster, tmp_path: Path, state: str) -> None:
    with updated(slurm, "PartitionName=h100", state, "UP"):
        with pytest.raises(Unreachable, match="Required partition not available"):
            SlurmExecutor().submit(batch(tmp_path / "batch"))
        Preflight(runs()).require_accepted()


def test_drained_nodes_refuse_nothing_that_they_could_run(slurm: SlurmCluster) -> None:
    every = ",".join(slurm.nodes)
    with updated(slurm, f"NodeName={every}", "DRAIN", "RESUME"):
        Preflight(runs()).require_accepted()
    wait_until(slurm.idle, "all nodes idle")
    with pytest.raises(UserError, match="sbatch would refuse: Requested node configuration is not available"):
        Preflight(runs(cpus_per_task=500)).require_accepted()


def test_no_variable_of_the_user_spares_a_job(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANCEL_STATE", "SUSPENDED")
    with updated(slurm, "PartitionName=h100", "DOWN", "UP"):
        ids = SlurmExecutor().submit(batch(tmp_path / "batch"))
        SlurmExecutor().cancel(ids)
        wait_until(lambda: slurm.run("squeue", "-h", "--name=t.one") == "", "the end of the job")
