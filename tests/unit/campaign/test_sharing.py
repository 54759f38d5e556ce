"""A campaign that is shared: a member of the group reads it and nothing else, and writes nothing."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import distrust
from dscampaign.files.private_files import make_below, open_private
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.sharing import open_to_readers
from dscampaign.orchestrator.campaign.selection import find
from dscampaign.orchestrator.campaign.sharing import share, unshare
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.tests.support.cli_world import World, make_world

GROUP = 54321
"""Without a name."""
COLLEAGUE, STRANGER = 54301, 54302

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="LEFT OUT: to be two users needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users reach, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def world(folder: Path) -> World:
    """The campaign of the command's tests, with what jobs leave in its folder besides."""
    previous = os.umask(0o077)
    made = make_world(folder)
    os.umask(previous)
    CampaignFolder(find(made.store, "sweep")).complete()
    attempt = made.attempt_paths("done")
    for path in (attempt.forward_payload, attempt.ds_config, weights(made), batch(made)):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text("{}")
    (attempt.logs / "20250101_rank0.log").write_text("said\n")
    for path in [made.dir, *made.dir.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return made


def weights(world: World) -> Path:
    return CampaignPaths(world.dir, "sweep").run("done").checkpoints("done") / "g0001-step00000001" / "weights"


def batch(world: World) -> Path:
    return CampaignPaths(world.dir, "sweep").batch("t1") / "payloads.jsonl"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def group() -> int:
    """One that this user may share with: any, where this is root."""
    return GROUP if os.geteuid() == 0 else os.getegid()


def shared(world: World, **options: Any) -> Any:
    return share(world.store, find(world.store, "sweep"), str(group()), **{"checkpoints": False, **options})


def as_user(user: int, *commands: list[str], groups: tuple[int, ...] = ()) -> list[tuple[int, str, str]]:
    """Run commands as another user: exit code, output and errors of each."""
    with ProcessPoolExecutor(1, get_context("fork")) as process:
        process.submit(become, user, groups).result()
        return list(process.map(run, commands))


def become(user: int, groups: tuple[int, ...]) -> None:
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    os.chdir("/")
    os.environ["HOME"] = "/nonexistent"


def run(words: list[str]) -> tuple[int, str, str]:
    texts = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with redirect_stdout(texts[0]), redirect_stderr(texts[1]):
        code = main(words)
    out, errors = (text.detach().getvalue().decode() for text in texts)
    return code, out, errors


def can_read(user: int, path: Path, groups: tuple[int, ...] = ()) -> bool:
    return can_open(user, path, "r", groups)


def can_open(user: int, path: Path, how: str, groups: tuple[int, ...] = ()) -> bool:
    ids = f"os.setgroups({list(groups)}); os.setgid({user}); os.setuid({user})"
    code = f"import os; {ids}; open({str(path)!r}, {how!r}).close()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, cwd="/").returncode == 0


@as_root
def test_a_colleague_can_run_the_reading_commands(world: World) -> None:
    commands = [["status"], ["explain", "sweep", "bad"], ["logs", "sweep", "done"], ["recommend"], ["report", "--json"]]
    at_dir = [[*words, "--dir", str(world.dir)] for words in commands]
    for words in at_dir:
        assert run(words)[0] == 0  # loads the modules, which the colleague may not read
    for code, _, errors in as_user(COLLEAGUE, *at_dir, groups=(GROUP,)):
        assert code == 2, errors
        assert f"you may not read {world.dir}/campaign.db" in errors
        assert "ask its owner to run `campaign share" in errors
    assert shared(world).blocked == {}
    assert [code for code, _, _ in as_user(COLLEAGUE, *at_dir, groups=(GROUP,))] == [0] * len(commands)
    assert all(code for code, _, _ in as_user(STRANGER, *at_dir))
    with world.store.write():  # SQLite's log lies beside the store now
        [(code, _, errors)] = as_user(COLLEAGUE, at_dir[0], groups=(GROUP,))
    assert code == 0, errors


@as_root
def test_a_colleague_reads_nothing_else_and_writes_nothing(world: World) -> None:
    shared(world)
    attempt, run = world.attempt_paths("done"), CampaignPaths(world.dir, "sweep").run("done")
    assert can_read(COLLEAGUE, attempt.ds_config, (GROUP,))
    for path in (batch(world), attempt.forward_payload, weights(world)):
        assert not can_read(COLLEAGUE, path, (GROUP,))
    for path in [world.dir, *world.dir.rglob("*")]:
        assert not mode(path) & 0o027, path
    for path in (world.dir / "campaign.db", world.dir / "new", attempt.metrics, attempt.logs / "new", run.dir / "new"):
        assert not can_open(COLLEAGUE, path, "a", (GROUP,))
    shared(world, checkpoints=True)
    assert can_read(COLLEAGUE, weights(world), (GROUP,))
    shared(world)
    assert not can_read(COLLEAGUE, weights(world), (GROUP,))


@as_root
def test_files_of_later_attempts_are_open_too(world: World) -> None:
    shared(world)
    paths = CampaignPaths(world.dir, "sweep")
    attempt = paths.run("new").attempt(1)
    previous = os.umask(0o077)
    try:
        make_below(paths.runs, attempt.dir)
        make_below(attempt.dir, attempt.logs)
        write_atomically(attempt.started, "{}")
        os.close(open_private(attempt.launcher_log(0), os.O_WRONLY | os.O_CREAT))
        (attempt.logs / "rank0.log").touch()  # by a launcher that knows nothing of this
        write_atomically(attempt.forward_payload, "{}", closed=True)
    finally:
        os.umask(previous)
    assert not can_read(COLLEAGUE, attempt.logs / "rank0.log", (GROUP,))
    open_to_readers(attempt)
    for path in (attempt.started, attempt.launcher_log(0), attempt.logs / "rank0.log"):
        assert can_read(COLLEAGUE, path, (GROUP,))
        assert not can_read(STRANGER, path)
    assert not can_read(COLLEAGUE, attempt.forward_payload, (GROUP,))


def test_own_jobs_still_trust_a_shared_folder(world: World) -> None:
    shared(world, checkpoints=True)
    paths = CampaignPaths(world.dir, "sweep")
    for place in (batch(world), paths.run("done").checkpoints("done")):
        assert distrust(place, world.dir) is None
    CampaignFolder(find(world.store, "sweep")).require()  # and its marker still says whose it is


def test_nothing_linked_to_is_opened(world: World, folder: Path) -> None:
    run = CampaignPaths(world.dir, "sweep").run("done")
    private = folder / "private"
    private.mkdir(mode=0o700)
    (private / "diary").touch(mode=0o600)
    (run.dir / "linked").symlink_to(private)
    (run.attempt(1).logs / "linked").symlink_to(private / "diary")
    os.link(private / "diary", run.attempt(1).logs / "hard")
    (notes := run.checkpoints("done") / "notes").touch(mode=0o600)
    run.forward.symlink_to(private)
    shared(world, checkpoints=True)
    open_to_readers(run.attempt(1))
    assert (mode(private), mode(private / "diary"), mode(notes)) == (0o700, 0o600, 0o600)
    unshare(world.store, find(world.store, "sweep"))
    assert (mode(private), mode(private / "diary")) == (0o700, 0o600)


@as_root
def test_sqlite_s_logs_are_of_the_group_that_may_read_the_store(folder: Path) -> None:
    """Of one that is not its writer's first group, without a folder that hands it down."""
    (folder / "own").mkdir(mode=0o700)
    os.chown(folder / "own", COLLEAGUE, COLLEAGUE)
    code = f"""
import os
from pathlib import Path
from dscampaign.db.store import Store
Store.open("sqlite:///{folder}/first.db", create=True).close()  # loads its modules, which may be in a home
os.setgroups([{GROUP}]); os.setgid({COLLEAGUE}); os.setuid({COLLEAGUE})
file = Path({str(folder)!r}, "own", "campaign.db")
Store.open(f"sqlite:///{{file}}", create=True).close()
os.chown(file, -1, {GROUP}); file.chmod(0o640)
store = Store.open(f"sqlite:///{{file}}")
with store.write():
    print(sorted({{path.stat().st_gid for path in file.parent.glob("campaign.db-[ws][ah]*")}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", f"[{GROUP}]")


def test_share_lists_readable_and_blocked_places(
    world: World, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.chmod(0o700)
    words = ["share", "sweep", "--group", str(group()), "--dir", str(world.dir)]
    (copy := world.dir / "copy").mkdir(mode=0o755)
    (copy / "campaign.json").touch()
    assert main(words) == 2
    assert f"could read other files there: {copy}" in capsys.readouterr().err
    copy.chmod(0o700)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{world.dir}/sweep/runs: logs, metrics, configurations of 4 runs" in said
    assert f"{world.dir}/campaign.db: the store, with all of sweep" in said
    assert f"{folder}: " in said.partition("still keep")[2]
    assert f"They type `campaign status sweep --dir {world.dir}`." in said
    assert main(["share", "sweep", "--stop", "--dir", str(world.dir)]) == 0
    assert "yours alone" in capsys.readouterr().out
    assert (mode(world.dir), main(words)) == (0o700, 0)
    (folder / "own").mkdir()
    sqlite3.connect(world.dir / "campaign.db").execute(f"VACUUM INTO '{folder}/own/c.db'")
    assert main([*words[:4], *(at := ["--store", f"sqlite:///{folder}/own/c.db"])]) == 0
    assert f"They type `campaign status sweep {' '.join(at)}`." in capsys.readouterr().out
