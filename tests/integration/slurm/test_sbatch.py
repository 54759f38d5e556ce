"""The batch scripts of sbatch/ on a real cluster."""

import json
import re
import shlex
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from dscampaign import sbatch
from dscampaign.jobs.agent import launchers
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.waiting import wait_until


def test_the_reconciler_hands_over_to_its_successor_and_never_runs_twice(slurm: SlurmCluster, tmp_path: Path) -> None:
    script, log = tmp_path / "reconciler.sbatch", tmp_path / "log"
    only_one = "mkdir busy || echo TWICE; echo began; trap 'rmdir busy; exit 143' TERM; sleep 300 & wait"
    values = _reconciler(tmp_path, script, f"bash -c {shlex.quote(only_one)}")
    script.write_text(sbatch.render("reconciler.sbatch", values))
    first = slurm.run("sbatch", "--parsable", str(script))
    wait_until(lambda: log.exists() and "began" in log.read_text(), "the first reconciler")
    slurm.run("scancel", "--batch", "--signal=USR1", first)
    wait_until(lambda: log.read_text().count("began") == 2, "the second reconciler")
    assert slurm.wait_job(first) == "COMPLETED"
    assert "TWICE" not in log.read_text()
    running = slurm.run("squeue", "-h", "--name=reconcile-demo", "-t", "running", "-o", "%A").split()
    assert len(running) == 1
    assert running != [first]


def test_one_run_by_hand_starts_a_launcher_on_each_node(slurm: SlurmCluster, tmp_path: Path) -> None:
    script, log = tmp_path / "run.sbatch", tmp_path / "log"
    launcher = tmp_path / "python"
    launcher.write_text(f'#!/bin/bash\n[[ $1 == -c ]] && exec {sys.executable} "$@"\nprintf "%s|" "$SEED" "$@"; echo\n')
    launcher.chmod(0o755)
    script.write_text(sbatch.render("run.sbatch", _run(tmp_path, launcher)))
    job = slurm.run("sbatch", "--parsable", "--hold", str(script))
    port = 20000 + int(job) % 10000
    with ExitStack() as taken:
        with suppress(OSError):  # then something else has it already
            taken.enter_context(socket.create_server(("", port)))
        slurm.run("scontrol", "release", job)
        assert slurm.wait_job(job) == "COMPLETED", log.read_text()
    chosen = re.search(r"--master_port\|(\d+)", log.read_text())
    assert chosen, log.read_text()
    assert port < int(chosen[1]) < port + 20
    address = f"--master_addr|gpu001|--master_port|{chosen[1]}|--no_local_rank"
    common = f"7|-u|-m|deepspeed.launcher.runner|--hostfile|{tmp_path}/attempt/hostfile|--no_ssh|--node_rank"
    lines = [f"{common}|{node}|{address}|train.py|--name|two words|" for node in (0, 1)]
    assert sorted(log.read_text().splitlines()) == lines
    assert (tmp_path / "attempt/hostfile").read_text() == "node-0 slots=4\nnode-1 slots=4\n"


def _reconciler(folder: Path, script: Path, reconcile: str) -> dict[str, sbatch.Value]:
    values: dict[str, sbatch.Value] = {"name": "reconcile-demo", "log": folder / "log", "options": ["--time=10"]}
    return values | {"script": script, "workdir": folder, "reconcile": [reconcile]}


def _run(folder: Path, python: Path) -> dict[str, sbatch.Value]:
    values: dict[str, sbatch.Value] = {"name": "by-hand", "nodes": 2, "log": folder / "log", "python": python}
    shell: dict[str, sbatch.Value] = {"options": ["--time=5"], "prologue": sbatch.prologue(), "setup": []}
    environment: dict[str, sbatch.Value] = {"environment": ["SEED=7"], "ranks_per_node": 4}
    place = launchers.NodeLaunch(str(python), 2, 4, "@node@", '"$address"', '"$port"', '"$hostfile"')
    launcher = [" ".join(launchers.command("deepspeed", place))]
    training = [shlex.join(["train.py", "--name", "two words"])]
    return (
        values | shell | environment | {"attempt_dir": folder / "attempt", "launcher": launcher, "training": training}
    )


def test_jobs_of_others_are_diagnosed_by_number_as_long_as_slurm_knows_them(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ends = {
        "deterministic": "python3 -c 'import a_module_that_nobody_has'",
        "gpu_fault": "srun -l bash -c 'kill -SEGV $$'",
        "completed": "true",
    }
    jobs = {kind: slurm.run("sbatch", "--parsable", f"--wrap={line}") for kind, line in ends.items()}
    for kind, job in jobs.items():
        slurm.wait_job(job, "COMPLETED", "FAILED")
        assert main(["diagnose", "--job", job, "-o", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["class"], found["job"]["job_id"]) == (kind, job)
        assert found["node"] == found["job"]["nodes"]
        assert kind == "completed" or found["proof"]["file"] == str(tmp_path / f"slurm-{job}.out")
