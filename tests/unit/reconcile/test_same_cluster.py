"""A pass on a host of another cluster, which sees the same folder and store but none of the jobs."""

from __future__ import annotations

import pytest

from dscampaign.jobs.shared.layout import cluster_file
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.tests.support.world_on_disk import Cluster, World


@pytest.fixture
def world(world: World) -> World:
    world.record()
    world.cluster.name = "dev"
    world.run_pass()
    return world


def elsewhere(world: World, name: str) -> Cluster:
    """The cluster of the host from now on."""
    there = Cluster()
    there.name = name
    world.cluster = there
    return there


def test_jobs_of_another_cluster_are_not_lost_and_nothing_is_submitted_here(world: World) -> None:
    batch, here = world.cluster.submitted[0], elsewhere(world, "other")
    for _ in range(3):
        with pytest.raises(
            Unreachable, match="jobs of this campaign are on cluster dev, and this host uses cluster other"
        ):
            world.run_pass()
    assert not here.submitted
    assert [row.job_id for row in world.attempts("depth-1")] == ["1_0"]
    here.name = ""  # its controller is away
    with pytest.raises(Unreachable, match="does not name this cluster"):
        world.run_pass()
    here.name = "other"
    cluster_file(batch.folder).unlink()  # as the hint says, where that cluster is no more
    world.run_pass()
    world.run_pass()
    assert here.submitted


def test_jobs_that_are_missing_on_their_own_cluster_are(world: World) -> None:
    """Whatever the case of its name, in which Slurm makes no difference."""
    elsewhere(world, "Dev")
    world.run_pass()
    world.run_pass()
    assert world.attempts("depth-1")[0].failure_class == "lost"
