"""Mistakes at the command line: what is said, what to type next, and the exit code."""

import json
import shlex
from pathlib import Path

import pytest
from sqlalchemy import Connection

from dscampaign.db import bulk, queries
from dscampaign.db import store as store_module
from dscampaign.db.read_only import ReadOnlyFile
from dscampaign.db.records import NewRun
from dscampaign.db.store import Store
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import CONFIG, World

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("compare sweep done", "sweep is a campaign, and done is none", "`campaign compare [NAME] A B`"),
        ("report bad", "no campaign named bad", "one of: sweep"),
        ("weights nope done out", "no campaign named nope", "one of: sweep"),
        ("logs nope done", "no campaign named nope", "one of: sweep"),
        ("list --dir \udcff", "the store's address is not a URL in UTF-8", "sqlite:///FILE or postgresql://HOST/NAME"),
        ("compare done done", "done is compared with itself", "`campaign compare [NAME] A B`"),
        ("compare sweep sweep", "sweep is compared with itself", "`campaign compare [NAME] A B`"),
        ("compare sweep bad bad-r0", "bad and bad-r0 have runs in common", "`campaign compare [NAME] A B`"),
        ("compare sweep bad bad", "bad is compared with itself", "`campaign compare [NAME] A B`"),
        ("report --output file", "cannot write file/figures: Not a directory", "name another folder"),
        ("report --output file/x", "cannot write file/x: Not a directory", "name another folder"),
    ],
)
def test_what_cannot_be_done(world: World, capsys: Output, words: str, error: str, hint: str) -> None:
    Path("file").touch()
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {error}\nhint: {hint}\n"


def insert_other(conn: Connection, world: World) -> int:
    return queries.insert_campaign(conn, name="other", spec="", spec_hash="o", dir=str(world.dir), executor="slurm")


def test_a_run_without_its_campaign_is_found_where_one_campaign_has_it(world: World, capsys: Output) -> None:
    with world.store.write() as conn:
        other = insert_other(conn, world)
        bulk.insert_runs(conn, other, [NewRun("done", {}, CONFIG, "o", 0), NewRun("new-2", {}, CONFIG, "p", 1)])
    for run, error, hint in (
        ("done", "done may mean 2 runs", "one of: sweep done, other done"),
        ("d", "d may mean 2 runs", "one of: sweep done, other done"),
        ("zilch", "no campaign or run named zilch", "one of: sweep, other"),
        ("swep", "no campaign or run named swep", "one of: sweep, other"),
        ("z*", "no campaign or run named z*", "one of: sweep, other"),
    ):
        for verb in ("explain", "logs", "cancel"):
            assert main([verb, run]) == 2
            assert capsys.readouterr().err == f"error: {error}\nhint: {hint}\n"
    for word, name in (("bad", "bad"), ("new-2", "new-2"), ("n*2", "new-2"), ("sma", "small"), ("7_2", "bad")):
        assert main(["explain", word]) == 0
        assert capsys.readouterr().out.split()[1] == name
    assert main(["compare", "done", "bad"]) == 2
    assert "done may mean 2 runs" in capsys.readouterr().err
    assert main(["compare", "small", "7_2"]) == 0
    assert capsys.readouterr().out.split()[2:4] == ["small", "bad"]


def test_all_campaigns_are_the_status_of_a_store_with_several(world: World, capsys: Output) -> None:
    with world.store.write() as conn:
        insert_other(conn, world)
    for verb in ("list", "status"):
        assert main([verb]) == 0
        assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["CAMPAIGN", "other", "sweep"]
        assert main([verb, "--json"]) == 0
        assert [one["campaign"] for one in json.loads(capsys.readouterr().out)["campaigns"]] == ["other", "sweep"]
    assert main(["status", "--failed"]) == 2
    assert "which campaign?" in capsys.readouterr().err


def test_the_log_of_a_job_is_that_of_its_attempt(world: World, capsys: Output) -> None:
    for generation in (1, 2):
        log = world.attempt_paths("small", generation).logs / "r_rank0.log"
        log.write_text(f"attempt {generation}\n")
    for words, shown in (("7_1", 1), ("8_0", 2), ("8", 2), ("t2", 2), ("small", 2), ("7_1 --attempt 2", 2)):
        assert main(["logs", *words.split()]) == 0
        assert capsys.readouterr().out == f"attempt {shown}\n"
    assert main(["logs", "7"]) == 2
    assert "a single run at a time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "said"),
    [("bad", "nothing to cancel\nno further attempt: 1 failed"), ("done", "nothing to cancel\nunchanged: 1 completed")],
)
def test_nothing_to_cancel(world: World, capsys: Output, run: str, said: str) -> None:
    assert main(["cancel", "sweep", run]) == 0
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(("words", "code"), [("retry sweep", 0), ("retry sweep --failed", 0), ("retry sweep --all", 2)])
def test_a_retry_of_many_from_a_crontab_asks_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, words: str, code: int
) -> None:
    retried: list[list[str]] = []
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_RUNS", "0")
    monkeypatch.setattr("dscampaign.orchestrator.campaign.desired.retry", lambda *given: retried.append(given[2]))
    monkeypatch.setattr("dscampaign.orchestrator.cli.runs._one_pass", lambda *_, **__: 0)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert main(words.split()) == code
    assert retried == ([["bad"]] if code == 0 else [])


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


def test_a_folder_that_cannot_be_written_is_told_before_the_plan(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "train.py").touch()
    (tmp_path / "x.yaml").write_text("name: x\nexecutor: local\ncommand: [train.py]\n")
    (tmp_path / "file").touch()
    assert main(["submit", str(tmp_path / "x.yaml"), "--dir", "/proc/campaign", "--yes"]) == 2
    err = capsys.readouterr().err
    assert "Plan:" not in err
    assert err.startswith("error: /proc: ")
    assert "hint: choose a folder that you can write to" in err


def test_a_spec_that_was_submitted_elsewhere_is_not_submitted_again_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    spec = spec_elsewhere(tmp_path, monkeypatch)
    warning = (
        f"warning: there is no store at {tmp_path}/b/campaign/campaign.db; there is a store beside the spec: add `--dir"
    )
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_RUNS", "0")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    for verb, code in (("plan", 0), ("submit", 2)):  # which needs --yes
        assert main([verb, spec]) == code
        assert warning in capsys.readouterr().err
    assert main(["plan", spec, "--dir", "../a/campaign"]) == 0
    assert "warning: there is no store" not in capsys.readouterr().err
    (tmp_path / "b" / "campaign").symlink_to("../a/campaign")
    assert main(["plan", spec]) == 0
    assert "warning: there is no store" not in capsys.readouterr().err


def test_a_store_in_the_folder_of_the_spec_is_found_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """Its paths are relative to where the command is called: called elsewhere, all would be run a second time."""
    spec, options = spec_elsewhere(tmp_path, monkeypatch, "dir: runs\n"), "--dir ../a/runs"
    (tmp_path / "a" / "campaign" / "campaign.db").unlink()
    Store.open(f"sqlite:///{tmp_path}/a/runs/campaign.db", create=True).close()
    assert main(["status", spec]) == 2
    assert f"hint: there is a store beside the spec: add `{options}`\n" in capsys.readouterr().err
    assert main(["plan", spec]) == 0
    assert f"; there is a store beside the spec: add `{options}`\n" in capsys.readouterr().err
    assert main(["plan", spec, *shlex.split(options)]) == 0
    assert "warning" not in capsys.readouterr().err


def spec_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: str = "") -> str:
    """A spec in another folder than this one, that was submitted from there; `places` are its `dir` and `store`."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    text = "name: one\nexecutor: local\ncommand: train.py\ntrain: {steps: 2, global_batch: 2}\n"
    (tmp_path / "a" / "spec.yaml").write_text(text + places)
    (tmp_path / "a" / "train.py").touch()
    Store.open(f"sqlite:///{tmp_path}/a/campaign/campaign.db", create=True).close()
    monkeypatch.chdir(tmp_path / "b")
    return "../a/spec.yaml"
