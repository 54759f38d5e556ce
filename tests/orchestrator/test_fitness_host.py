"""What was seen of a host, a folder and a store, and the verdict that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor.check import At, Check, Verdict, exit_code
from dscampaign.orchestrator.doctor.check_host import clock_check, host_checks, numbers
from dscampaign.orchestrator.doctor.login_host import Folder, Login, Package, StoreFacts
from dscampaign.orchestrator.doctor.requirements import Wants
from dscampaign.orchestrator.spec.model import RunConfig

DIR = Path("/shared/campaigns")
FOLDER = Folder(DIR, DIR, file_system="nfs4", free_gb=900.0)
SQLITE = StoreFacts(f"sqlite:///{DIR}/campaign.db", sqlite=True, version="3.51.3", schema="0007", file_system="ext4")
POSTGRES = StoreFacts("postgresql://me@db/c", sqlite=False, version="16.2", schema="0007", offset_s=0.02)
LOGIN = Login("login1", "3.11.7", (Package("click", "8.1", "8.1.7"),), FOLDER, POSTGRES)


def wants(**given: Any) -> Wants:
    return Wants(("run",), RunConfig(), ranks=8, gpus=8, on_gpus=True, **given)


def verdicts(login: Login, *asked: Wants, shared: bool = False) -> dict[str, Check]:
    return {check.id: check for check in host_checks(login, asked, shared=shared)}


def test_a_fit_host_has_nothing_to_do() -> None:
    found = verdicts(LOGIN, wants())
    assert {check.verdict for check in found.values()} == {Verdict.OK}
    assert exit_code(found.values()) == 0
    assert {"host.packages", "folder.writable", "folder.links", "folder.space", "store.reachable"} <= found.keys()


@pytest.mark.parametrize(
    ("package", "seen"),
    [
        (Package("rich", "13", ""), "rich is missing"),
        (Package("pydantic", "2.7", "2.6.4"), "pydantic 2.6.4 is older than 2.7"),
    ],
)
def test_a_package_that_is_missing_or_too_old(package: Package, seen: str) -> None:
    found = verdicts(replace(LOGIN, packages=(package,)))["host.packages"]
    assert (found.verdict, found.seen) == (Verdict.PROBLEM, seen)


def forwarded(login: Login, **tools: Any) -> dict[str, Check]:
    config = RunConfig.model_validate({"forward": tools})
    return verdicts(login, replace(wants(), config=config))


def test_a_tool_that_gets_metrics_is_there() -> None:
    known = replace(LOGIN, tools={"wandb": "0.31.0", "mlflow": "3.17"}, wandb_key=True)
    found = forwarded(known, wandb={"project": "p"}, mlflow={"tracking_uri": "https://host"})
    assert (found["forward.wandb"].seen, found["forward.mlflow"].seen) == ("wandb 0.31.0", "mlflow 3.17")
    assert {found[f"forward.{tool}"].verdict for tool in ("wandb", "mlflow")} == {Verdict.OK}
    assert "forward.tensorboard" not in found


def test_a_tool_that_is_not_installed_is_a_warning() -> None:
    found = forwarded(LOGIN, tensorboard={})["forward.tensorboard"]
    assert (found.verdict, found.seen) == (Verdict.WARNING, "tensorboard is not installed: it will get no metrics")
    assert "dscampaign[tensorboard]" in found.next


@pytest.mark.parametrize(
    ("said", "inherited", "verdict"),
    [
        ({"mode": "online"}, "offline", Verdict.WARNING),
        ({"mode": "offline"}, "", Verdict.OK),
        ({}, "", Verdict.WARNING),
        ({}, "offline", Verdict.OK),
    ],
)
def test_only_online_does_wandb_ask_who_you_are(said: dict[str, str], inherited: str, verdict: Verdict) -> None:
    host = replace(LOGIN, tools={"wandb": "0.31.0"}, wandb_mode=inherited)
    found = forwarded(host, wandb=said)["forward.wandb"]
    assert found.verdict is verdict
    assert ("WANDB_API_KEY" in found.next) == (verdict is Verdict.WARNING)


def test_the_mode_of_wandb_may_stand_in_the_spec_s_environment() -> None:
    config = RunConfig.model_validate({"forward": "wandb", "env": {"WANDB_MODE": "offline"}})
    found = verdicts(replace(LOGIN, tools={"wandb": "0.31.0"}), replace(wants(), config=config))
    assert found["forward.wandb"].verdict is Verdict.OK


def test_a_newer_version_with_more_digits_is_not_older() -> None:
    assert numbers("2.10.1rc1") > numbers("2.9") > numbers("")


def test_sqlite_on_a_network_file_system_is_a_warning_that_names_postgresql() -> None:
    found = verdicts(replace(LOGIN, store=replace(SQLITE, file_system="nfs4")), wants())["store.file_system"]
    assert found.verdict is Verdict.WARNING
    assert "nfs4" in found.seen
    assert "PostgreSQL" in found.next


@pytest.mark.parametrize("kind", ["lustre", "gpfs", ""])
def test_a_file_system_that_is_not_known_counts_as_a_network(kind: str) -> None:
    assert verdicts(replace(LOGIN, store=replace(SQLITE, file_system=kind)))["store.file_system"].verdict == "warning"


def test_sqlite_on_a_local_disk_is_well_here_and_a_note_for_a_cluster() -> None:
    local = replace(LOGIN, store=SQLITE)
    assert verdicts(local)["store.file_system"].verdict is Verdict.OK
    assert verdicts(local, wants())["store.file_system"].verdict is Verdict.NOTE


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("3.6.23", "ok"), ("3.7.0", "note"), ("3.40.1", "note"), ("3.51.2", "note"), ("3.51.3", "ok"), ("3.53.0", "ok")],
)
def test_versions_of_sqlite_with_the_wal_bug(version: str, verdict: str) -> None:
    assert verdicts(replace(LOGIN, store=replace(SQLITE, version=version)))["store.version"].verdict == verdict


def test_a_store_that_does_not_answer_is_away_and_one_of_another_version_is_not() -> None:
    away = replace(POSTGRES, trouble="connection refused", away=True, offset_s=None, version="")
    assert exit_code(verdicts(replace(LOGIN, store=away)).values()) == 3
    older = replace(POSTGRES, trouble="the store's schema is 0001", hint="campaign db upgrade", offset_s=None)
    found = verdicts(replace(LOGIN, store=older))
    assert found["store.reachable"].next == "campaign db upgrade"
    assert exit_code(found.values()) == 1


def test_a_problem_that_stays_outweighs_what_may_pass() -> None:
    at = At("x")
    assert exit_code([at.problem("a", "", "", away=True), at.problem("b", "", "")]) == 1
    assert exit_code([at.warning("a", "", ""), at.note("b", "")]) == 0


def test_a_store_that_is_yet_to_be_made_is_well() -> None:
    found = verdicts(replace(LOGIN, store=replace(SQLITE, missing=True)))["store.reachable"]
    assert found.verdict is Verdict.OK
    assert "campaign submit" in found.seen


def test_a_folder_that_takes_no_files_is_a_problem_and_all_that_is_said_of_it() -> None:
    found = verdicts(replace(LOGIN, folder=replace(FOLDER, trouble="Read-only file system")), wants())
    assert found["folder.writable"].verdict is Verdict.PROBLEM
    assert "folder.space" not in found


def test_a_folder_in_which_others_write_or_without_hard_links_is_a_problem() -> None:
    folder = replace(FOLDER, distrust=f"others can write to {DIR}", links="Operation not supported")
    found = verdicts(replace(LOGIN, folder=folder))
    assert found["folder.private"].next.startswith(f"`chmod go-w {DIR}`")
    assert found["folder.links"].verdict is Verdict.PROBLEM


def test_a_local_disk_is_a_warning_until_a_node_has_seen_it() -> None:
    local = replace(LOGIN, folder=replace(FOLDER, file_system="xfs"))
    assert verdicts(local, wants())["folder.file_system"].verdict is Verdict.WARNING
    assert verdicts(local, wants(), shared=True)["folder.file_system"].verdict is Verdict.OK
    assert verdicts(local)["folder.file_system"].verdict is Verdict.OK


def test_checkpoints_of_all_runs_must_fit() -> None:
    found = verdicts(LOGIN, wants(checkpoints_gb=500.0), wants(checkpoints_gb=500.0))["folder.space"]
    assert found.verdict is Verdict.WARNING
    assert "900 GB are free" in found.seen
    assert "1,000 GB" in found.seen
    assert verdicts(LOGIN, wants(checkpoints_gb=500.0))["folder.space"].verdict is Verdict.OK
    assert verdicts(replace(LOGIN, folder=replace(FOLDER, free_gb=1.0)))["folder.space"].verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("least_s", "most_s", "verdict", "words"),
    [
        (-0.2, 0.9, "ok", "agrees with mine within 0.9 s"),
        (-50.0, 60.0, "ok", "agrees with mine within 60.0 s"),  # nobody looked more closely: nothing is proved
        (39.8, 40.4, "warning", "its clock is 40 s ahead of mine"),
        (-41.0, -40.0, "warning", "its clock is 40 s behind mine"),
        (3600.0, 3601.0, "problem", "its clock is 3600 s ahead of mine"),
    ],
)
def test_clocks(least_s: float, most_s: float, verdict: str, words: str) -> None:
    found = clock_check("node.clock", least_s, most_s, "its clock", "mine", At("node n1"))
    assert (found.verdict, words in found.seen) == (verdict, True), found.seen


def test_the_database_s_clock_is_compared_with_the_host_s() -> None:
    off = replace(LOGIN, store=replace(POSTGRES, offset_s=-40.0))
    assert "40 s behind this host's" in verdicts(off)["store.clock"].seen
