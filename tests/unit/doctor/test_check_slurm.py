"""What Slurm tells of a cluster, how it is read, and the verdict on what a spec asks of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor.check import Check, Severity, exit_code
from dscampaign.orchestrator.doctor.check_slurm import Nodes, cluster_checks, partitions, request_checks
from dscampaign.orchestrator.doctor.requirements import Requirements
from dscampaign.orchestrator.executors.base import SubmissionRefused
from dscampaign.orchestrator.executors.slurm_commands import OtherCluster
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.fake_slurm import FakeSlurm

HAS = "gpu:h100:8, 1000000 MB, 96 cores"
MAIN = Nodes("main", default=True, max_time_min=1440, count=3, memory_mb=1_000_000, has=HAS)
BROKEN = replace(MAIN, count=1, in_service=False)
SCAVENGE = replace(MAIN, partition="scavenge", default=False)
CLUSTER = (MAIN, BROKEN, SCAVENGE)
STARTS = "Job 7 to start at 2030-01-01T00:00:00"


def required(host_gb: float = 0.0, **slurm: Any) -> Requirements:
    config = RunConfig.model_validate({"slurm": {"partition": "main", **slurm}})
    return Requirements(("run",), config, ranks=8, gpus=8, on_gpus=True, host_gb=host_gb)


def verdicts(
    asked: Requirements, on: tuple[Nodes, ...] = CLUSTER, forecast: str | Exception = STARTS
) -> dict[str, Check]:
    return {check.id: check for check in request_checks(on, [asked], [forecast])}


def test_a_fit_cluster_has_nothing_to_do() -> None:
    found = verdicts(required(time="1-0", nodes=2))
    assert {check.verdict for check in found.values()} == {Severity.OK}
    assert found["slurm.nodes"].seen == f"main: 4 nodes ({HAS})"
    assert found["slurm.submit"].seen == STARTS


@pytest.mark.parametrize(
    ("asked", "seen", "hint"),
    [
        ({"partition": "mian"}, "no partition named mian", 'did you mean "main"?'),
        ({"partition": "x"}, "no partition named x", "one of: main, scavenge"),
        (
            {"time": "2-0"},
            "main allows 1,440 min, slurm.time is 2,880 min: jobs would wait forever",
            "write `time: 1440`",
        ),
    ],
)
def test_partitions(asked: dict[str, Any], seen: str, hint: str) -> None:
    found = verdicts(required(**asked))["slurm.partition"]
    assert (found.verdict, found.seen) == (Severity.PROBLEM, seen)
    assert found.next.startswith(hint)


def test_a_partition_that_is_down_is_away_and_the_default_one_needs_no_name() -> None:
    down = replace(MAIN, state="down")
    assert exit_code(verdicts(required(partition=None), (down,)).values()) == 3


def test_what_sbatch_refuses_is_told_beside_what_there_is() -> None:
    refused = SubmissionRefused("Requested node configuration is not available")
    found = verdicts(required(gpus_per_node="h10:8"), forecast=refused)["slurm.submit"]
    assert found.verdict is Severity.PROBLEM
    assert found.seen == "sbatch would refuse: Requested node configuration is not available"
    assert found.next == f"change the `slurm` section (run); there is main: 4 nodes ({HAS})"
    assert "slurm.submit" not in verdicts(required(partition="x"), forecast=refused)  # one error for one cause


@pytest.mark.parametrize(
    ("in_service", "asked", "verdict"),
    [
        (0, {}, Severity.WARNING),
        (2, {"nodes": 3}, Severity.WARNING),
        (2, {"nodelist": "n3"}, Severity.WARNING),
        (2, {"nodes": 2}, Severity.PROBLEM),  # one node more of the same kind changes nothing
        (2, {"nodes": 4}, Severity.PROBLEM),  # there are three
    ],
)
def test_what_nodes_out_of_service_may_still_run_is_not_refused(
    in_service: int, asked: dict[str, Any], verdict: Severity
) -> None:
    refused = SubmissionRefused("Requested node configuration is not available")
    groups = (replace(MAIN, count=in_service), replace(MAIN, count=3 - in_service, in_service=False))
    on = tuple(group for group in groups if group.count)
    assert verdicts(required(**asked), on, refused)["slurm.submit"].verdict is verdict
    unknown = SubmissionRefused("Invalid qos specification")
    assert verdicts(required(**asked), on, unknown)["slurm.submit"].verdict is Severity.PROBLEM


def test_another_cluster_is_told_before_what_this_one_lacks() -> None:
    elsewhere = OtherCluster("SLURM_CLUSTERS is dev2", "unset it")
    found = verdicts(required(partition="of-dev2"), forecast=elsewhere)
    assert "slurm.partition" not in found
    assert (found["slurm.submit"].verdict, found["slurm.submit"].next) == (Severity.PROBLEM, "unset it")


# -- Slurm's own words -------------------------------------------------------------------------------------------------

SINFO = """\
a notice of the site's wrapper
main*|up|7-00:00:00|3|idle|gpu:h100:8(S:0-1),nvme:1|1000000|96|ib,nvlink
main*|up|7-00:00:00|1|drained|(null)|1000|8|(null)
debug|down|30:00|2|mixed*|(null)|1000|8|(null)
empty|up|infinite|0|n/a|(null)|n/a|n/a|(null)
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    fake.answers("sinfo", SINFO)
    return fake


def test_slurm_is_asked_and_understood(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINFO_PARTITION", "debug")  # the user's default would hide the others
    found = partitions()
    assert not any("SINFO_PARTITION" in call.env for call in slurm.calls)
    idle, drained, silent, empty = found
    has = "gpu:h100:8,nvme:1, 1000000 MB, 96 cores, ib,nvlink"
    assert idle == Nodes("main", True, "up", 7 * 1440, 3, True, 1_000_000, has)
    assert (drained.in_service, drained.has) == (False, "1000 MB, 8 cores")
    assert silent == Nodes("debug", False, "down", 30, 2, False, 1000, "1000 MB, 8 cores")
    assert (empty.count, empty.memory_mb, empty.max_time_min) == (0, 0, None)


def test_a_controller_that_does_not_answer_is_all_that_is_said(slurm: FakeSlurm) -> None:
    slurm.answers("sinfo", err="sinfo: error: Unable to contact slurm controller\n", code=1)
    found = list(cluster_checks([required()]))
    assert [check.id for check in found] == ["slurm.controller"]
    assert exit_code(found) == 3
