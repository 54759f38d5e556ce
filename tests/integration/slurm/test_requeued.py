"""A job that Slurm requeues although it was told not to, on a cluster that remembers no job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.tests.integration.slurm.test_status_truth import Life
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.slurm_fixtures import running_cluster
from dscampaign.tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def forgetful_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm"), nodes=1, accounting=False) as cluster:
        yield cluster


def requeued(life: Life, cluster: SlurmCluster) -> str:
    """The id of a job that made a step, and that Slurm then put back into the queue."""
    life.until("its steps", lambda runs: runs["waits"]["step"] == 1)
    job = life.job("waits")
    cluster.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    cluster.run("scontrol", "requeue", job)
    wait_until(lambda: life.live().get(job) == "PENDING", "its place in the queue")
    return job


@pytest.mark.parametrize("seen", [True, False], ids=["seen in the queue", "seen after its second start"])
def test_a_requeued_job_is_no_crash_and_its_run_goes_on(
    forgetful_slurm: SlurmCluster, tmp_path: Path, seen: bool
) -> None:
    life = Life(forgetful_slurm, tmp_path, "again", ("waits",))
    job = requeued(life, forgetful_slurm)
    if seen:
        life.until("its place in the queue", lambda runs: runs["waits"]["state"] == "queued")
    forgetful_slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    if not seen:
        wait_until(lambda: job not in life.live(), "the end of its second start")
    (tmp_path / "end").touch()
    runs = life.until("the end", lambda runs: runs["waits"]["state"] == "completed")
    assert [attempt["failure_class"] for attempt in runs["waits"]["attempts"]] == ["preempted", "completed"]
    assert life.live() == {}
    life.store.close()


def test_a_requeued_job_that_its_user_cancels_is_not_tried_again(forgetful_slurm: SlurmCluster, tmp_path: Path) -> None:
    life = Life(forgetful_slurm, tmp_path, "enough", ("waits",))
    job = requeued(life, forgetful_slurm)
    forgetful_slurm.run("scancel", job)
    runs = life.until("the end", lambda runs: runs["waits"]["state"] == "cancelled")
    assert len(runs["waits"]["attempts"]) == 1
    life.store.close()
