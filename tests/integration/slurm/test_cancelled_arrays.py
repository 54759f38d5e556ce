"""What a Slurm with and without slurmdbd says of arrays that are cancelled in the queue, whole or in part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dscampaign.orchestrator.executors.base import WaitedJob
from dscampaign.orchestrator.executors.job_listing import MISSED_S
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.tests.integration.slurm.test_status_truth import Life
from dscampaign.tests.support.slurm_cluster import SlurmCluster
from dscampaign.tests.support.slurm_fixtures import running_cluster
from dscampaign.tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

SIZE = 4
WAYS = {
    "t.whole": "{id}",
    "t.each": "{id}_0 {id}_1 {id}_2 {id}_3",
    "t.range": "{id}_[0-3]",
    "t.rest": "{id}_2 {id}_[0-1] {id}_3",
    "t.part": "{id}_[1-2]",
    "t.one": "{id}_3",
}
"""Names of arrays, and how each is cancelled."""
LEFT = {"t.part": {0, 3}, "t.one": {0, 1, 2}}
"""What still waits then."""


@pytest.fixture(scope="module", params=[False, True], ids=["without accounting", "with accounting"])
def some_slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm"), nodes=1, accounting=request.param) as cluster:
        yield cluster


def states(waited: Sequence[WaitedJob] = ()) -> dict[str, dict[int, str]]:
    found = SlurmExecutor().list_jobs({name: range(SIZE) for name in WAYS}, 0.0, waited)
    assert found.complete
    shown: dict[str, dict[int, str]] = {name: {} for name in WAYS}
    for (name, index), job in found.jobs.items():
        assert job.state != "CANCELLED" or job.cancelled_in_queue
        shown[name][index] = job.state
    return shown


def test_whatever_was_cancelled_in_the_queue_is_seen_at_once(some_slurm: SlurmCluster) -> None:
    some_slurm.run("scontrol", "update", "PartitionName=h100", "State=DOWN")
    ids = {name: some_slurm.sbatch("sleep 100", f"--job-name={name}", "--array=0-3") for name in WAYS}
    wait_until(lambda: all(len(tasks) == SIZE for tasks in states().values()), "all tasks in the queue")
    waited = [WaitedJob(name, index, f"{ids[name]}_{index}", 0.0) for name in WAYS for index in range(SIZE)]
    for name, how in WAYS.items():
        for what in how.format(id=ids[name]).split():
            some_slurm.run("scancel", what)
    expected = {
        name: {index: "PENDING" if index in LEFT.get(name, ()) else "CANCELLED" for index in range(SIZE)}
        for name in WAYS
    }
    wait_until(lambda: states(waited) == expected, "the end of all that was cancelled")
    long = [one._replace(ago_s=math.inf, missed_s=MISSED_S) for one in waited]
    if some_slurm.accounting:  # no pass has looked while they waited, but there every task that begins has a line
        assert states(long) == expected
    else:
        assert states(long)["t.one"] == dict.fromkeys(LEFT["t.one"], "PENDING")
    records = some_slurm.run("squeue", "--all", "-h", "--array", "--states=all", "--name=t.each", "-o", "%i")
    assert records == ids["t.each"]  # without numbers of tasks: what this test is about


def test_a_run_whose_job_was_cancelled_by_hand_is_not_submitted_again(some_slurm: SlurmCluster, tmp_path: Path) -> None:
    some_slurm.run("scontrol", "update", "PartitionName=h100", "State=DOWN")
    kinds = ("done", "done-too", "queue-scancel", "last")
    life = Life(some_slurm, tmp_path, "parts", kinds)
    life.until("all in the queue", lambda runs: all("PartitionDown" in run["reason"] for run in runs.values()))
    some_slurm.run("scancel", life.job("queue-scancel"))
    runs = life.until("one cancelled", lambda runs: runs["queue-scancel"]["state"] == "cancelled")
    assert {kind: runs[kind]["state"] for kind in kinds if kind != "queue-scancel"} == dict.fromkeys(
        ("done", "done-too", "last"), "queued"
    )
    some_slurm.run("scancel", *(life.job(kind) for kind in ("last", "done-too", "done")))
    runs = life.until("all cancelled", lambda runs: {run["state"] for run in runs.values()} == {"cancelled"})
    assert {len(run["attempts"]) for run in runs.values()} == {1}
    life.store.close()
