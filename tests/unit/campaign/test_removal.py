"""What `campaign list`, `rm` and `gc` show and delete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import func, select

from dscampaign.db import queries, schema
from dscampaign.db.records import RunRow
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign import desired, retention
from dscampaign.orchestrator.campaign.retention import Garbage, GarbageKind, collect, find_garbage
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import Unreachable, UserError
from dscampaign.orchestrator.reconcile.lease import LeaseHeld, LeaseHolder, take_lease
from dscampaign.tests.support.world_on_disk import World, make_world
from dscampaign.tests.unit.jobs.test_checkpoint import make as save

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a settled campaign of two completed runs, and a copy of it beside."""
    folder = tmp_path_factory.mktemp("removal") / "campaign"
    made = make_world(folder)
    made.record()
    settle(made)
    made.store.close()
    shutil.copytree(folder, folder.with_name("as-settled"), symlinks=True)
    return folder


@pytest.fixture
def world(settled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The settled campaign, as it was before other tests used it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shutil.rmtree(settled)
    shutil.copytree(settled.with_name("as-settled"), settled, symlinks=True)
    made = World(settled, Store.open(f"sqlite:///{settled}/campaign.db"))
    yield made
    made.store.close()


def settle(world: World) -> None:
    world.run_pass()
    world.run_jobs()
    for _ in range(2):
        world.run_pass()
    assert set(world.states().values()) == {"completed"}


def age(*paths: Path) -> None:
    """As if they had been there for days."""
    for path in paths:
        os.utime(path, (1e9, 1e9), follow_symlinks=False)


def rows(world: World) -> dict[str, int]:
    tables = [table for table in schema.metadata.sorted_tables if table.name != "lease"]
    with world.store.read() as conn:
        counts = {table.name: conn.execute(select(func.count()).select_from(table)).scalar_one() for table in tables}
    return {name: number for name, number in counts.items() if number}


def cli(world: World, *words: str) -> int:
    return main([words[0], "--dir", str(world.folder), *words[1:]])


# -- list --------------------------------------------------------------------------------------------------------------


def test_all_campaigns_are_listed_with_whose_they_are(world: World, capsys: Output) -> None:
    assert cli(world, "list", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["campaigns"]
    assert (found["campaign"], found["counts"]["completed"], found["being_removed"]) == ("c", 2, False)
    assert found["user"]
    assert found["gpu_hours"] == pytest.approx(2 * 60 / 3600)
    assert cli(world, "list") == 0
    assert "2 completed" in capsys.readouterr().out


# -- rm ----------------------------------------------------------------------------------------------------------------


def test_a_settled_campaign_is_removed_with_all_that_is_its(world: World, capsys: Output) -> None:
    assert rows(world)["step_metric"] == 6
    assert cli(world, "rm", "c", "--yes") == 0
    assert "removed campaign c: 2 runs" in capsys.readouterr().err
    assert rows(world) == {}
    assert not world.paths.dir.exists()
    assert world.folder.exists()
    world.record()  # its name is free again
    assert set(world.states().values()) == {"pending"}


def test_nothing_is_removed_without_an_answer(world: World, capsys: Output) -> None:
    assert cli(world, "rm", "c") == 2
    assert "add --yes" in capsys.readouterr().err
    assert world.paths.marker.exists()
    assert rows(world)["run"] == 2


def test_a_campaign_with_something_left_to_do_stays(world: World) -> None:
    with world.store.write() as conn:
        queries.update_run(conn, world.runs()["depth-1"].id, state=RunState.PENDING)
    with pytest.raises(UserError, match="not settled: 1 run, such as depth-1"):
        retention.remove(world.store, world.campaign)
    assert world.paths.marker.exists()


def test_a_campaign_with_an_attempt_that_may_have_a_job_stays(world: World) -> None:
    with world.store.write() as conn:
        queries.update_attempt(conn, world.attempts("depth-1")[0].id, state=AttemptState.RUNNING)
    with pytest.raises(UserError, match="not settled"):
        retention.remove(world.store, world.campaign)


def test_a_campaign_that_another_process_reconciles_stays(world: World) -> None:
    take_lease(world.store, world.campaign, LeaseHolder("elsewhere", "1", "x"))
    with pytest.raises(LeaseHeld):
        retention.remove(world.store, world.campaign)
    assert world.paths.marker.exists()


def test_a_folder_that_is_away_is_not_taken_for_removed(world: World) -> None:
    world.paths.dir.rename(world.folder / "aside")
    world.paths.dir.mkdir()  # an empty mount point
    with pytest.raises(Unreachable):
        retention.remove(world.store, world.campaign)
    assert rows(world)["run"] == 2


@pytest.mark.parametrize("linked", [False, True])
def test_a_copied_store_acts_for_nobody(world: World, capsys: Output, tmp_path: Path, linked: bool) -> None:
    shutil.copytree(world.folder, tmp_path / "copy", copy_function=os.link if linked else shutil.copy2)
    for verb, *words in (["rm", "--yes"], ["reconcile"], ["share"]):
        assert main([verb, "c", "--dir", str(tmp_path / "copy"), *words]) == 3
        assert "campaign.db is a copy" in capsys.readouterr().err
    assert main(["gc", "--dir", str(tmp_path / "copy")]) == 0
    assert "campaign.db is a copy" in capsys.readouterr().out
    assert world.paths.marker.exists()


def theirs(folder: Path) -> Path:
    """A folder of the user's own."""
    file = folder / "src" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text("import torch")
    return file


def test_files_that_the_campaign_did_not_make_stay_and_are_listed(world: World, capsys: Output) -> None:
    run = world.paths.run("depth-1")
    attempt, batch = run.attempt(1), world.paths.batch(world.attempts("depth-1")[0].token)
    folders = (world.paths.dir, world.paths.runs, batch, run.dir, attempt.dir, attempt.logs, attempt.ranks)
    mine = [theirs(folder / "mine") for folder in folders]
    names = (*("logs/my_rank0.log", "logs/launcher-old.log", "profile/n", "search/n", "search/from-2/n"), "\n", "-rf")
    files = [attempt.dir / name for name in names]
    files += [batch / "joins-notes", batch / "my_log.out", run.dir / "forward" / "notes"]
    files += [
        world.paths.dir / name for name in ("searches/notes.json", "tensorboard/depth-1-old/events.out.tfevents.1")
    ]
    for file in (*files, run.forward / "0123-wandb.lock"):  # the last is of the campaign
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert cli(world, "rm", "c", "--yes") == 0
    listed = capsys.readouterr().err
    assert all(f"keeps {file.parents[1]}: " in listed for file in mine)
    assert listed.count("keeps ") == len(mine + files)
    left = {path for path in world.paths.dir.rglob("*") if path.is_file()}
    assert left == {*mine, *files}
    with pytest.raises(UserError, match="is not empty: batches is not of this campaign"):
        world.record()


@pytest.mark.parametrize("name", ["src", "runs/depth-1", "campaign.json"])
def test_a_folder_that_was_there_before_is_never_taken_over(tmp_path: Path, name: str) -> None:
    made = make_world(tmp_path)
    file = made.paths.dir / name / "model.py" if name != "campaign.json" else made.paths.marker
    file.parent.mkdir(parents=True)
    file.write_text('{"mine": 1}')
    with pytest.raises(UserError, match="is not empty") as refused:
        made.record()
    assert "another name" in (refused.value.hint or "")
    with pytest.raises(UserError, match="is not empty"):  # nor does the plan promise anything
        desired.spec_diff(made.store, made.submission())
    assert [path for path in made.paths.dir.rglob("*") if path.is_file()] == [file]
    assert rows(made) == {}
    made.store.close()


@pytest.fixture
def unsettled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two runs that wait in the queue, and whose folder their user has deleted."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = make_world(tmp_path / "campaign")
    monkeypatch.setattr(retention, "make_executor", lambda *_: made.cluster)
    made.record()
    made.run_pass()
    shutil.rmtree(made.paths.dir)
    yield made
    made.store.close()


def test_a_campaign_that_can_be_settled_no_more_goes_once_no_job_is_left(unsettled: World, capsys: Output) -> None:
    """No pass can note the end of its jobs: it has no folder to read."""
    with pytest.raises(Unreachable) as caught:
        unsettled.run_pass()
    assert str(caught.value.hint).endswith("or `campaign rm c` to give it up")
    with pytest.raises(UserError, match="2 jobs of it may still run") as refused:
        retention.remove(unsettled.store, unsettled.campaign)
    assert refused.value.hint == "end 1_0, 1_1, then `campaign rm c`"
    assert rows(unsettled)["run"] == 2
    unsettled.cluster.cancel(["1_0", "1_1"])
    assert cli(unsettled, "rm", "c", "--yes") == 0
    assert "no folder" in capsys.readouterr().err
    assert rows(unsettled) == {}


def test_a_campaign_with_invisible_jobs_stays(unsettled: World) -> None:
    unsettled.cluster.jobs.clear()
    unsettled.cluster.complete = False
    with pytest.raises(Unreachable, match="unknown whether"):
        retention.remove(unsettled.store, unsettled.campaign)
    unsettled.cluster.complete = True
    values = {**unsettled.campaign.provenance, "user": "somebody"}
    with unsettled.store.write() as conn:
        queries.update_campaign(conn, unsettled.campaign.id, provenance=values)
    with pytest.raises(UserError, match="jobs of somebody may be left"):
        retention.remove(unsettled.store, unsettled.campaign)
    assert rows(unsettled)["run"] == 2


@pytest.mark.parametrize("at", ["sweep", "delete_measurements", "delete_campaign"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_removal_that_was_killed_is_finished_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str, after: int
) -> None:
    original, calls = getattr(retention, at), []

    def killed(*arguments: object) -> object:
        calls.append(at)
        if len(calls) > after:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(retention, at, killed)
        retention.remove(world.store, world.campaign)
    assert calls
    if "campaign" in rows(world):
        with pytest.raises(UserError, match="is being removed"):
            world.record()
        with pytest.raises(UserError, match="is being removed"):
            desired.retry(world.store, world.campaign, None)
        retention.remove(world.store, world.campaign)
    assert rows(world) == {}
    assert not world.paths.dir.exists()


# -- gc ----------------------------------------------------------------------------------------------------------------


def garbage(world: World) -> Garbage:
    return find_garbage(world.store, [world.campaign])


def kinds(world: World) -> set[GarbageKind]:
    return {item.kind for item in garbage(world).items}


def train_built_in(world: World) -> RunRow:
    run = world.runs()["depth-1"]
    config = {name: value for name, value in run.config.items() if name != "command"}
    with world.store.write() as conn:
        queries.update_run(conn, run.id, config=config)
    return run


def half_written(world: World) -> Path:
    run = train_built_in(world)
    left = world.paths.run("depth-1").checkpoints(run.config_hash) / "g0001-step00000001.tmp"
    left.mkdir(parents=True)
    return left


def test_files_younger_than_an_hour_are_no_garbage(world: World) -> None:
    left = half_written(world)
    assert garbage(world).items == ()
    age(left)
    found = garbage(world)
    assert [item.path for item in found.items] == [left]
    left.touch()
    assert collect(world.store, found, [world.campaign]).items == ()
    age(left)
    assert cli(world, "gc", "--yes") == 0
    assert not left.exists()


def test_a_script_s_own_folder_is_no_half_written_checkpoint(world: World) -> None:
    config = world.runs()["depth-1"].config
    age(half_written(world))
    with world.store.write() as conn:
        queries.update_run(conn, world.runs()["depth-1"].id, config=config)
    assert kinds(world) == set()


def test_a_checkpoint_with_files_of_the_user_s_stays(world: World) -> None:
    folder = world.paths.run("depth-1").checkpoints(train_built_in(world).config_hash)
    first, second, third = [save(folder, step) for step in (1, 2, 3)]
    (first / "notes.txt").touch()
    assert [kept.path for kept in garbage(world).kept] == [first]
    assert kinds(world) == set()
    (second / "manifest.json").unlink()  # as a removal that was interrupted leaves it
    best = shutil.copytree(third, folder / "best")
    (folder / "link").symlink_to(third)
    assert cli(world, "rm", "c", "--yes") == 0
    assert sorted(folder.iterdir()) == [best, first, folder / "link"]


def test_a_run_that_is_not_settled_is_never_touched(world: World) -> None:
    left, run = half_written(world), world.runs()["depth-1"]
    age(left)
    found = garbage(world)
    assert kinds(world) == {GarbageKind.TEMPORARY}
    with world.store.write() as conn:
        queries.update_run(conn, run.id, state=RunState.RUNNING)
    assert collect(world.store, found, [world.campaign]).items == ()
    assert left.exists()


def test_checkpoints_beyond_retention_go_unless_a_script_keeps_them_itself(world: World) -> None:
    run = world.runs()["depth-1"]
    folder = world.paths.run("depth-1").checkpoints(run.config_hash)
    folder.mkdir(parents=True)
    for step in (1, 2, 3, 9):
        save(folder, step)
    assert kinds(world) == set()  # it has a script of its own
    train_built_in(world)
    found = garbage(world)
    assert [item.path.name for item in found.items] == ["g0001-step00000001"]  # 9 was never reached by the run
    collect(world.store, found, [world.campaign])
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["2", "3", "9"]


def test_nothing_starts_in_a_campaign_whose_removal_was_interrupted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    world.record(matrix={"depth": [1, 2, 3]})
    monkeypatch.delenv("HF_TOKEN")
    world.run_pass()
    assert world.states()["depth-3"] == "held"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(retention, "_remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            retention.remove(world.store, world.campaign)
    monkeypatch.setenv("HF_TOKEN", "x")
    for _ in range(2):
        world.run_pass()
    assert world.cluster.submitted == []
    retention.remove(world.store, world.campaign)
    assert rows(world) == {}
