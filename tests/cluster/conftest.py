"""Fixtures of the tests that run on the private Slurm cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .slurm_cluster import SlurmCluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A running cluster of four nodes that all tests share; SLURM_CONF points at it."""
    with _running(tmp_path_factory.mktemp("slurm"), nodes=4) as cluster:
        yield cluster


@pytest.fixture
def own_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of two nodes for one test that breaks what cannot be mended, such as the job ids."""
    with _running(tmp_path_factory.mktemp("slurm"), nodes=2) as cluster:
        yield cluster


@contextmanager
def _running(dir: Path, nodes: int) -> Iterator[SlurmCluster]:
    with SlurmCluster(dir, nodes) as cluster, pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - cluster.env.keys():
            patch.delenv(name)
        patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        yield cluster


@pytest.fixture(autouse=True)
def _whole_cluster(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test: every server runs, no job is left, every node is idle."""
    yield
    if "slurm" in request.fixturenames:
        request.getfixturevalue("slurm").reset()
