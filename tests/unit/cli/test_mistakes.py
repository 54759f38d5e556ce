"""Mistakes at the command line: what is said, what to type next, and the exit code."""

from pathlib import Path

import pytest

from dscampaign.db import store as store_module
from dscampaign.db.read_only import ReadOnlyFile
from dscampaign.db.records import AttemptState, RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import World, make_world

Output = pytest.CaptureFixture[str]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return make_world(tmp_path)


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("compare sweep done", "compare done of sweep with what?", "`campaign compare sweep done OTHER`"),
        ("compare done done", "done is compared with itself", "`campaign compare [NAME] A B`"),
        ("compare sweep sweep", "sweep is compared with itself", "`campaign compare [NAME] A B`"),
        ("compare sweep bad bad", "bad is compared with itself", "`campaign compare [NAME] A B`"),
        ("report -o file", "file is a file, and the report is a folder", "name a folder that is there, or a new one"),
        ("report -o file/x", "file is a file, and the report is a folder", "name a folder that is there, or a new one"),
    ],
)
def test_what_cannot_be_done(world: World, capsys: Output, words: str, error: str, hint: str) -> None:
    Path("file").touch()
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {error}\nhint: {hint}\n"


@pytest.mark.parametrize(("run", "said"), [("bad", "bad is already failed"), ("done", "done is already completed")])
def test_nothing_to_cancel(world: World, capsys: Output, run: str, said: str) -> None:
    assert main(["cancel", "sweep", run]) == 0
    assert capsys.readouterr().err == f"nothing to cancel: {said}\n"


@pytest.mark.parametrize("words", ["retry sweep", "retry sweep bad", "cancel sweep --all", "reconcile sweep"])
def test_what_may_only_be_read_is_refused_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: Output, words: str
) -> None:
    world.store.close()
    monkeypatch.setattr(store_module, "read_only", ReadOnlyFile)
    assert main(words.split()) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {world.dir}/campaign.db belongs to ")
    assert err.count("error:") == 1


def test_there_is_no_log_where_no_job_ran(world: World, capsys: Output) -> None:
    refused = "sbatch refused it: Invalid partition name specified"
    attempt = world.attempt("new", lines=[])
    world.set_attempt(attempt, state=AttemptState.FAILED, failure_class="refused", ended_s=200.0)
    world.set_run("new", state=RunState.FAILED, reason=refused)
    assert main(["logs", "sweep", "new"]) == 2
    assert capsys.readouterr().err == f"error: no job ran in g0001: {refused}\nhint: so there is no log\n"


def test_a_folder_that_cannot_be_written_is_told_before_the_plan(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "x.yaml").write_text("name: x\nexecutor: local\ncommand: [train.py]\n")
    (tmp_path / "file").touch()
    assert main(["submit", str(tmp_path / "x.yaml"), "--dir", "/proc/campaign", "--yes"]) == 2
    err = capsys.readouterr().err
    assert "Plan:" not in err
    assert err.startswith("error: /proc: ")
    assert "hint: choose a folder that you can write to" in err


def test_a_host_that_nobody_knows(capsys: Output) -> None:
    assert main(["status", "--store", "postgresql://me:geheim@host.invalid/x"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("error: postgresql://me@host.invalid/x: ")
    assert "geheim" not in err
    assert "nothing is lost" not in err
    assert "hint: no host has this name: check the store's address" in err
