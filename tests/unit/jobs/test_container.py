"""The command lines of containers, checked word for word, and by programs that take the runtimes' places."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent import container
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.tests.support.attempt import make_payload

LAUNCHER = ["python3", "-m", "launcher", "--option", "a b"]
FAKE = """#!/bin/sh
printf '%s\\n' "$(basename "$0")" "$@" >>{log}
until [ "$1" = python3 ]; do shift; done
shift
exec env {image} {python} "$@"
"""
"""A runtime: it writes its arguments down, one a line, and starts the command with variables of an image."""


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which nothing but the test's own variables and folders are found."""
    for name in tuple(os.environ):
        monkeypatch.delenv(name)
    for name in ("home", "scratch", "work", "bin", "memory", "data set", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(container, "PACKAGE", Path("/venv/dscampaign"))
    monkeypatch.setattr(container, "INSIDE", "/venv/dscampaign/jobs/inside.py")
    return tmp_path


def wrapped(folder: Path, runtime: str, env: dict[str, str] | None = None, **fields: Any) -> tuple[list[str], Any]:
    section = {"image": "/images/train", "runtime": runtime, **fields.pop("section", {})}
    values = {"workdir": str(folder / "work"), "command": ("train.py", f"--data={folder / 'data'}"), **fields}
    payload = make_payload(folder / "campaign", python="python3", container=section, env=env or {}, **values)
    paths = AttemptPaths(Path(payload.attempt_dir))
    paths.dir.mkdir(parents=True, exist_ok=True)
    given = {**os.environ, **payload.env, "CAMPAIGN_PROGRESS_DIR": str(folder / "memory"), "CAMPAIGN_RUN": "run"}
    return container.wrapped(LAUNCHER, given, payload, paths)


def own_mounts(folder: Path) -> list[str]:
    return [f"{folder / name}:{folder / name}" for name in ("campaign", "data", "home", "memory", "work")]


def tail(folder: Path) -> list[str]:
    return ["python3", "/venv/dscampaign/jobs/inside.py", str(folder / "memory" / "inside.json"), *LAUNCHER]


def test_apptainer_gets_a_clean_environment_and_the_mounts(host: Path) -> None:
    line, env = wrapped(host, "apptainer", gpus_per_node=2, section={"mounts": ("/data:/in:ro",), "writable": True})
    binds = ["/data:/in:ro", "/venv/dscampaign:/venv/dscampaign:ro", *own_mounts(host)]
    options = ["--cleanenv", "--no-home", "--nv", "--writable-tmpfs"]
    assert line == ["apptainer", "exec", *options, *(f"--bind={bind}" for bind in binds), "/images/train", *tail(host)]
    assert env["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("gpus", [0, 4])
def test_pyxis_starts_a_step_on_the_agent_s_own_node(host: Path, monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "gpu007")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    line, _ = wrapped(host, "pyxis", gpus_per_node=gpus, section={"image": "nvcr.io#nvidia/pytorch:25.01-py3"})
    mounts = ",".join(["/venv/dscampaign:/venv/dscampaign:ro", *own_mounts(host)])
    step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--mem=0", "--cpu-bind=none"]
    step += ["--nodelist=gpu007", "--cpus-per-task=16", "--mpi=none", "--export=ALL", "--unbuffered", "--input=none"]
    inside = ["--container-image=nvcr.io#nvidia/pytorch:25.01-py3", f"--container-mounts={mounts}"]
    inside += ["--no-container-mount-home", "--no-container-remap-root", "--no-container-entrypoint"]
    inside += ["--container-readonly"]
    if gpus:
        step = ["env", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility", *step]
        inside += ["--container-env=NVIDIA_VISIBLE_DEVICES,NVIDIA_DRIVER_CAPABILITIES"]
    assert line == [*step, *inside, *tail(host)]


def test_charliecloud_writes_an_image_only_to_make_a_mount_point(host: Path) -> None:
    image = host / "image"
    line, _ = wrapped(host, "charliecloud", section={"image": str(image), "mounts": ("/lustre",)})
    assert "--write" not in line  # not a folder
    (image / "ch").mkdir(parents=True)
    (image / "ch" / "environment").touch()
    line, env = wrapped(host, "charliecloud", section={"image": str(image), "mounts": ("/lustre", "/a:/tmp/a")})
    assert "--bind=/a:/tmp/a" in line
    assert line[:5] == ["ch-run", "--unset-env=*", f"--set-env=PATH={container._PATH}", "--set-env", "--write"]
    for bound in [word.partition(":")[2] for word in line if word.startswith("--bind=")]:
        (image / bound.lstrip("/")).mkdir(parents=True)
    line, _ = wrapped(host, "charliecloud", section={"image": str(image), "mounts": ("/lustre",)})
    assert "--write" not in line
    assert line[line.index(str(image)) :] == [str(image), "--", *tail(host)]
    assert env["USER"]


@pytest.mark.parametrize("runtime", ["pyxis", "apptainer"])
def test_the_environment_inside_is_the_attempt_s_then_the_image_s_then_the_host_s(
    host: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    for name, value in {"ON_HOST": "host", "ON_BOTH": "host", "SLURM_NTASKS": "8", "HF_HOME": "/hf"}.items():
        monkeypatch.setenv(name, value)
    for name in ("LD_LIBRARY_PATH", "CUDA_HOME", "VIRTUAL_ENV", "PYTHONPATH", "CONDA_PREFIX"):
        monkeypatch.setenv(name, "/host")
    image = "ON_BOTH=image IN_SPEC=image SLURM_NTASKS=1 RANK=0 PYTHONPATH=/image"
    program = host / "bin" / ("srun" if runtime == "pyxis" else "apptainer")
    program.write_text(FAKE.format(log=host / "log", image=image, python=sys.executable))
    program.chmod(0o755)
    package = Path(container.__file__).parents[2]
    monkeypatch.setattr(container, "PACKAGE", package)
    monkeypatch.setattr(container, "INSIDE", str(package / "jobs" / "inside.py"))
    payload_env = {"IN_SPEC": "a,b 'c'\n$d", "PYTHONUNBUFFERED": "1"}
    show = (
        "import json, os, signal; print(json.dumps([dict(os.environ), signal.getsignal(signal.SIGUSR2), os.getcwd()]))"
    )
    monkeypatch.setattr(sys.modules[__name__], "LAUNCHER", [sys.executable, "-c", show])
    line, env = wrapped(host, runtime, payload_env)
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    seen, usr2, folder = json.loads(done.stdout)
    kept = ("ON_HOST", "ON_BOTH", "IN_SPEC", "SLURM_NTASKS", "HF_HOME", "HOME", "RANK", "CUDA_HOME", "LD_LIBRARY_PATH")
    assert {name: seen.get(name) for name in kept} == {
        "ON_HOST": "host",
        "ON_BOTH": "image",
        "IN_SPEC": payload_env["IN_SPEC"],
        "SLURM_NTASKS": "8",
        "HF_HOME": "/hf",
        "HOME": str(host / "home"),
        "RANK": None,
        "CUDA_HOME": None,
        "LD_LIBRARY_PATH": None,
    }
    assert seen["PYTHONPATH"] == f"{host / 'memory' / 'packages'}:/image"
    assert not {"VIRTUAL_ENV", "CONDA_PREFIX"} & seen.keys()
    assert (usr2, Path(folder).name) == (1, "g0001")
    assert (host / "memory" / "inside.json").stat().st_mode & 0o077 == 0
    assert payload_env["IN_SPEC"] not in (host / "log").read_text()
    script = "import dscampaign, dscampaign.jobs.report; print(dscampaign.report)"
    subprocess.run([sys.executable, "-S", "-c", script], env={"PYTHONPATH": seen["PYTHONPATH"]}, check=True)


def test_a_folder_that_the_spec_mounts_read_only_stays_so(host: Path) -> None:
    section = {"mounts": (f"{host / 'data'}:{host / 'data'}:ro", f"{host}:{host}:ro")}
    (host / "data" / "below").mkdir()
    line, _ = wrapped(host, "apptainer", section=section, command=("train.py", str(host / "data" / "below")))
    binds = [word.removeprefix("--bind=") for word in line if word.startswith("--bind=")]
    own = [mount for mount in own_mounts(host) if "data" not in mount]
    assert [bind for bind in binds if not bind.endswith(":ro")] == own
    assert f"{host / 'data'}:{host / 'data'}:ro" in binds
