"""Real training on two CPU ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.agent import cleanup

from .attempts import WORLD_SIZE, Attempt

Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens, shared by all runs of the session."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Starts ``deepspeed ... ARGUMENTS``, on two ranks unless another number is said."""
    folder = tmp_path_factory.mktemp("launch")
    ports = []
    cleanup.clear_build_marks(os.environ)

    def start(*arguments: str, env: Mapping[str, str], ranks: int = WORLD_SIZE) -> subprocess.Popen[str]:
        hostfile = folder / f"hostfile-{ranks}"
        hostfile.write_text(f"localhost slots={ranks}\n")
        launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--hostfile", str(hostfile), "--no_ssh"]
        options = ["--node_rank", "0", "--no_local_rank", "--master_addr", "127.0.0.1", "--master_port"]
        ports.append(_free_port())
        return subprocess.Popen(
            [*launcher, *options, str(ports[-1]), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    yield start
    for port in ports:
        cleanup.clear_shared_memory("127.0.0.1", port)


@pytest.fixture(scope="session")
def train_many(
    launch: Launch, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Attempt]]:
    """Trains attempts that differ from the tiny one as said, in one launch."""

    def train(ranks: int = WORLD_SIZE, /, **changes_by_name: Mapping[str, Any]) -> dict[str, Attempt]:
        folder = tmp_path_factory.mktemp("runs")
        attempts = {name: Attempt(folder / name) for name in changes_by_name}
        environments = [attempts[name].prepare(data_dir, **changes) for name, changes in changes_by_name.items()]
        (folder / "environments.json").write_text(json.dumps(environments))
        script = str(Path(__file__).with_name("many.py"))
        process = launch(script, str(folder / "environments.json"), env={"DS_ACCELERATOR": "cpu"}, ranks=ranks)
        output, _ = process.communicate()
        assert process.returncode == 0, output
        return attempts

    return train


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
