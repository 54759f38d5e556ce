"""A private cluster for the length of a block, as the fixtures of all tests use it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dscampaign.tests.support.slurm_cluster import SlurmCluster


@contextmanager
def running_cluster(dir: Path, nodes: int, accounting: bool = True) -> Iterator[SlurmCluster]:
    """A cluster that runs; SLURM_CONF points at it, and no variable of a surrounding job is left."""
    with SlurmCluster(dir, nodes, accounting=accounting) as cluster, pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - cluster.env.keys():
            patch.delenv(name)
        patch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
        yield cluster
