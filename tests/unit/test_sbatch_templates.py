"""The templates in sbatch/: the shell reads them, and values get into them whole."""

import shlex
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from dscampaign import sbatch

SCRIPTS = sorted(path.name for path in Path(sbatch.__file__).parent.glob("*.s[hb]*"))
RECONCILER: dict[str, sbatch.Value] = {
    "name": "reconcile-demo",
    "log": Path("/shared/my logs/reconciler.log"),
    "script": Path("/shared/it's here.sbatch"),
    "workdir": Path("/my project"),
    "options": ["--account=physics", "--partition=cpu"],
    "reconcile": ["campaign reconcile demo --watch"],
}
RUN: dict[str, sbatch.Value] = {
    "name": "demo-zero-2",
    "nodes": 2,
    "log": Path("/shared/%j.log"),
    "options": ["--time=60"],
    "prologue": sbatch.prologue(),
    "setup": [],
    "environment": ["CAMPAIGN_SEED=1", "B='two words'"],
    "attempt_dir": Path("/shared/a b"),
    "ranks_per_node": 8,
    "python": Path("/opt/python"),
    "launcher": ['/opt/python -m torch.distributed.run --node_rank @node@ --master_port "$port"'],
    "training": [shlex.join(["train.py", "--name", "two words"])],
}


def assert_shell_reads(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_shell_reads_each_template_as_it_is(name: str) -> None:
    assert_shell_reads(resources.files(sbatch).joinpath(name).read_text())


def test_the_shell_reads_what_is_rendered() -> None:
    assert_shell_reads(sbatch.render("reconciler.sbatch", RECONCILER))
    assert_shell_reads(sbatch.render("run.sbatch", RUN))


def test_a_missing_or_an_unknown_value_is_an_error() -> None:
    with pytest.raises(KeyError, match="script"):
        sbatch.render("reconciler.sbatch", {key: value for key, value in RECONCILER.items() if key != "script"})
    with pytest.raises(ValueError, match="no placeholder nmae"):
        sbatch.render("reconciler.sbatch", RECONCILER | {"nmae": "x"})


def test_the_prologue_keeps_what_the_user_set() -> None:
    script = "\n".join([*sbatch.prologue(), 'echo "$NCCL_DEBUG" "$SRUN_CPUS_PER_TASK"'])
    env = {"PATH": "/usr/bin:/bin", "NCCL_DEBUG": "INFO", "SLURM_CPUS_PER_TASK": "6"}
    done = subprocess.run(["bash", "-eu", "-c", script], env=env, text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["INFO", "6"]
