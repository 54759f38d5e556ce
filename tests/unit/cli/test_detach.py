"""Where a detached reconciler begins, with a Slurm that answers as the test wants; a real one is in test_detached."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import leases, queries
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import detach
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.pages.status import retries_line
from dscampaign.orchestrator.reconcile.lease import JOB_PREFIX, STANDING, LeaseHolder, acquire, lease_name
from dscampaign.orchestrator.settings import resolve
from dscampaign.orchestrator.spec.sections import ReconcilerConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig
from dscampaign.tests.support.cli_world import World
from dscampaign.tests.support.fake_slurm import FakeSlurm

HERE = socket.gethostname()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    made = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    made.answers("sinfo", f"gpu*|{HERE}|30:00\ncpu|elsewhere|1-0\n")
    return made


def campaign_of(world: World, **options: str) -> CampaignRow:
    with world.store.write() as conn:
        queries.update_campaign(conn, world.campaign_id, provenance={"reconciler": options})
        [campaign] = queries.list_campaigns(conn)
    return campaign


def start(world: World, campaign: CampaignRow) -> LeaseHolder:
    return detach.detach(world.store, campaign, resolve({"dir": str(world.dir), "store": None}))


def test_one_job_with_the_options_of_the_spec_serves_all(world: World, cluster: FakeSlurm) -> None:
    campaign = campaign_of(world, account="physics")
    assert detach.runs_as_job(world.store, campaign)
    assert start(world, campaign).job == "12"
    [call] = [call for call in cluster.calls if call.name == "sbatch"]
    assert {"--account=physics", "--time=30", "--dependency=singleton", "--cpus-per-task=1"} <= call.options
    [name] = [option.removeprefix("--job-name=") for option in call.options if option.startswith("--job-name=")]
    assert name.startswith(JOB_PREFIX)
    assert f"reconcile --all-campaigns --watch --store sqlite:///{world.dir}/campaign.db" in call.script
    cluster.answers("squeue", "12|PENDING|Priority\n")
    assert start(world, campaign).job == "12"
    with world.store.write() as conn:
        leases.acquire_lease(conn, STANDING, "nobody", 0.0)
        conn.exec_driver_sql("update lease set expires_s = 0")
    assert start(world, campaign).job == "12"  # its lease ran out while it waits
    assert cluster.names().count("sbatch") == 1


def test_a_job_that_was_killed_is_started_again(world: World, cluster: FakeSlurm) -> None:
    campaign = campaign_of(world)
    with world.store.write() as conn:
        acquire(conn, STANDING, LeaseHolder.of_job("7"))
    assert start(world, campaign).job == "12"


def test_colleagues_look_for_the_same_job(cluster: FakeSlurm) -> None:
    for login in ("alice", "bob"):
        detach.jobs_in_queue(Store.open(f"postgresql://{login}@db/campaigns", check_schema=False))
    [arguments] = {tuple(call.args) for call in cluster.calls}
    assert not any("user" in argument for argument in arguments)


def test_sqlite_is_opened_on_one_host(world: World, cluster: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = campaign_of(world, partition="cpu")
    cluster.answers("sinfo", "cpu|elsewhere|1-0\n")
    assert not detach.runs_as_job(world.store, elsewhere)
    assert main(["reconcile", "sweep"]) == 8
    with world.store.write() as conn:
        leases.acquire_lease(conn, lease_name(world.campaign_id), "login7:4242:abc", 60.0)
    assert main(["retry", "sweep", "bad"]) == 0
    assert capsys.readouterr().err.endswith("retries: on (pid 4242 on login7)\nnext: campaign status sweep\n")
    assert not [call for call in cluster.calls if JOB_PREFIX in call.script]


def test_a_refused_job_names_another_place(world: World, cluster: FakeSlurm) -> None:
    cluster.answers("sbatch", err="sbatch: error: Batch job submission failed: Invalid qos specification\n", code=1)
    with pytest.raises(UserError, match="Invalid qos") as error:
        start(world, campaign_of(world))
    assert "reconciler: {partition: ...}" in str(error.value.hint)
    cluster.answers("sbatch", "Submitted batch job 12\n")
    assert start(world, campaign_of(world)).job == "12"  # the refusal left no claim


@pytest.mark.parametrize(
    ("holder", "queue", "line"),
    [
        ("::.7", {"7": "RUNNING"}, "retries: on (job 7)"),
        ("::.7", None, "retries: on (job 7)"),
        ("::.7", {}, "retries: off, "),
        ("::.7", {"7": "PENDING, Resources"}, "retries: wait for job 7 (PENDING, Resources)"),
        ("::.7", {"8": "PENDING, Priority"}, "retries: wait for job 8 (PENDING, Priority)"),
        ("login7:4242:", None, "retries: on (pid 4242 on login7)"),
        (f"{HERE}:4194399:", None, "retries: off, "),
        ("login7:4242:abc", None, "retries: off, "),  # it is about to start one
    ],
)
def test_retries_are_on_while_their_process_lives(
    world: World, holder: str, queue: dict[str, str] | None, line: str
) -> None:
    with world.store.write() as conn:
        acquire(conn, STANDING, LeaseHolder.parse(holder))
    status = read_status(world.store, campaign_of(world))
    values: dict[str, Any] = {**vars(status), "queue": queue}
    assert retries_line(type(status)(**values)).startswith(line)


def test_the_job_gets_the_place_of_the_training_or_its_own() -> None:
    slurm = SlurmConfig(partition="gpu", account="a", qos="long")
    assert ReconcilerConfig().options(slurm) == {"partition": "gpu", "account": "a", "qos": "long"}
    other = ReconcilerConfig(partition="cpu", time="12:00:00").options(slurm)
    assert other == {"partition": "cpu", "account": "a", "time": "12:00:00"}
