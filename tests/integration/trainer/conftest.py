"""Real training on two CPU ranks."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dscampaign.tests.integration.trainer.attempts import ON_CPU, WORLD_SIZE, Attempt
from dscampaign.tests.integration.trainer.ranks import Ranks

Launch = Callable[..., Ranks]

with pytest.MonkeyPatch.context() as without:
    without.setitem(sys.modules, "mlflow", None)  # as in jobs/trainer/__main__.py: a second of each process of tests
    import deepspeed  # noqa: F401

torch.set_num_threads(1)  # models are tiny, and idle threads of OpenMP keep a core busy for a while


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared tokens, shared by all runs of the session."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """Starts ``python ARGUMENTS`` on two ranks, unless another number is said."""
    started: list[Ranks] = []

    def start(*arguments: str, env: Mapping[str, str], ranks: int = WORLD_SIZE) -> Ranks:
        started.append(Ranks(arguments, env, ranks, _free_port()))
        return started[-1]

    yield start
    for ranks in started:
        ranks.kill()


@pytest.fixture(scope="session")
def train_many(
    launch: Launch, data_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, Attempt]]:
    """Trains attempts that differ from the tiny one as said, in one launch."""

    def train(
        ranks: int = WORLD_SIZE, /, backend: str = "", **changes_by_name: Mapping[str, Any]
    ) -> dict[str, Attempt]:
        folder = tmp_path_factory.mktemp("runs")
        attempts = {name: Attempt(folder / name) for name in changes_by_name}
        environments = [attempts[name].prepare(data_dir, **changes) for name, changes in changes_by_name.items()]
        (folder / "environments.json").write_text(json.dumps(environments))
        script = str(Path(__file__).with_name("many.py"))
        env = {**ON_CPU, "COMPILE_BACKEND": backend}
        code, output = launch(script, str(folder / "environments.json"), env=env, ranks=ranks).finish()
        assert code == 0, output
        return attempts

    return train


def in_lanes(names: Iterable[Any], default: Container[Any]) -> list[Any]:
    """Parameters of which only the default ones are no nightly tests."""
    return [pytest.param(name, marks=() if name in default else pytest.mark.nightly) for name in names]


def selected(request: pytest.FixtureRequest, fixture: str = "name") -> set[str]:
    """Names that the tests of this module ask for in this session, those of them that use a fixture."""
    here = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    return {str(item.callspec.params["name"]) for item in here if {"name", fixture} <= {*item.fixturenames}}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
