"""What Slurm would refuse is known before anything is recorded, and a Slurm that hangs holds nobody up."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor import check_slurm
from dscampaign.orchestrator.doctor.check_slurm import Preflight
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors import slurm_commands as commands
from dscampaign.orchestrator.spec.expand import Run, expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support.fake_slurm import FakeSlurm

SINFO = "main*|up|1-00:00:00|3|idle|gpu:h100:8|1000000|96|ib\n"
FAILED = "sbatch: error: Batch job submission failed: "


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    fake.answers("sinfo", SINFO)
    fake.answers("sbatch", err="sbatch: Job 7 to start at 2030-01-01T00:00:00 using 8 processors\n")
    return fake


def runs(**fields: Any) -> tuple[Run, ...]:
    matrix = {"lr": [0.1, 0.2]}
    return expand(Spec.model_validate({"name": "x", "command": ["a.py", "{lr}"], "matrix": matrix, **fields}))


def refused(**slurm: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        Preflight(runs(slurm=slurm)).require_accepted()
    return caught.value


def test_what_slurm_takes_passes_with_one_look_for_all_runs(slurm: FakeSlurm) -> None:
    Preflight(runs()).require_accepted()
    assert sorted(slurm.names()) == ["sbatch", "sinfo"]


def test_a_partition_that_is_not_there_is_told_with_those_that_are(slurm: FakeSlurm) -> None:
    slurm.answers("sbatch", err=f"{FAILED}Invalid partition name specified\n", code=1)
    error = refused(partition="gpu")
    assert error.message == "nothing was submitted: no partition named gpu"
    assert error.hint == "one of: main"


@pytest.mark.parametrize(
    "said",
    [
        "Invalid account or account/partition combination specified",
        "Invalid qos specification",
        "Invalid feature specification",
    ],
)
def test_what_only_sbatch_knows(slurm: FakeSlurm, said: str) -> None:
    slurm.answers("sbatch", err=f"{FAILED}{said}\n", code=1)
    assert refused().message == f"nothing was submitted: sbatch would refuse: {said}"


@pytest.mark.parametrize(
    "said",
    [
        "Required node not available (down, drained or reserved)",
        "Required partition not available (inactive or drain)",
        "Requested node configuration is not available",
    ],
)
def test_nodes_that_are_down_for_now_refuse_nothing(slurm: FakeSlurm, said: str) -> None:
    slurm.answers("sinfo", SINFO.replace("idle", "drained"))
    slurm.answers("sbatch", err=f"allocation failure: {said}\n", code=1)
    Preflight(runs()).require_accepted()


def test_a_shell_that_asks_for_another_cluster(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "dev2")
    slurm.answers("scontrol", "ClusterName             = dev\n")
    error = refused(partition="of-dev2")
    assert error.message.startswith("nothing was submitted: SLURM_CLUSTERS is dev2")
    assert "`unset SLURM_CLUSTERS`" in (error.hint or "")


def test_a_slurm_that_does_not_answer_refuses_nothing(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.answers("sinfo", err="sinfo: error: Unable to contact slurm controller\n", code=1)
    Preflight(runs(slurm={"partition": "gpu"})).require_accepted()
    for name in ("sinfo", "sbatch"):
        script = slurm.folder / f"{name}.new"
        script.write_text("#!/bin/sh\nexec sleep 600\n")
        script.chmod(stat.S_IRWXU)
        script.replace(slurm.folder / name)  # not written in place: the one before may just be started
    monkeypatch.setattr(check_slurm, "LOOK_S", 0.2)
    monkeypatch.setattr(commands, "COMMAND_TIMEOUT_S", 600.0)
    Preflight(runs(slurm={"partition": "gpu"})).require_accepted()
