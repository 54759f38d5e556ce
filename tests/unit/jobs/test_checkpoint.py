"""Checkpoints are complete or absent."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from dscampaign.jobs.shared.checkpoint import CheckpointError, Manifest
from dscampaign.tests.support import REPOSITORY

HASH = "abc"


def make(
    folder: Path, step: int, *, generation: int = 1, config_hash: str = HASH, world_size: int = 2, arrangement: str = ""
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)  # as the agent does
    draft = checkpoint.begin(folder, generation, step)
    (draft / "shards").mkdir()
    for rank in range(world_size):
        (draft / "shards" / f"{rank}.pt").write_bytes(bytes([step % 256]) * 1000)
    files = checkpoint.seal(draft, (draft / "shards").iterdir())
    manifest = Manifest(step, config_hash, world_size, 1, generation, step * 8, files, arrangement=arrangement)
    return checkpoint.commit(draft, manifest).path


def newest(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Name of the newest usable checkpoint, and why newer ones are not."""
    reasons: dict[str, str] = {}
    found = checkpoint.newest_verified(folder, HASH, 2, on_skip=lambda path, why: reasons.update({path.name: why}))
    return found.path.name if found else None, reasons


def test_the_furthest_is_the_newest(tmp_path: Path) -> None:
    make(tmp_path, 200)
    make(tmp_path, 1000)
    make(tmp_path, 300, generation=2)
    assert newest(tmp_path) == ("g0001-step00001000", {})
    make(tmp_path, 1000, generation=2)
    assert newest(tmp_path) == ("g0002-step00001000", {})


def of_a_stranger(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to somebody else")
    os.chown(path, 12345, 12345)


def open_to_all(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o002)


@pytest.mark.parametrize("change", [of_a_stranger, open_to_all])
@pytest.mark.parametrize("where", ["", "manifest.json", "shards", "shards/1.pt", "shards/extra.pt", ".."])
def test_what_others_may_have_written_is_passed_over(
    tmp_path: Path, change: Callable[[Path], None], where: str
) -> None:
    """Its digests hold: whoever writes the files writes the manifest too."""
    folder = tmp_path / "run" / "checkpoints"
    path = make(folder, 300)
    (path / "shards" / "extra.pt").touch()  # DeepSpeed may load what no manifest names
    assert newest(folder) == (path.name, {})
    change(Path(os.path.normpath(path / where)))
    found, reasons = newest(folder)
    assert found is None
    assert ("others can write to " in reasons[path.name]) or ("belongs to user 12345" in reasons[path.name])
    with pytest.raises(CheckpointError):
        checkpoint.verify(path, check_digests=False)


def truncate(path: Path) -> None:
    os.truncate(path / "shards/1.pt", 10)


def flip(path: Path) -> None:
    (path / "shards/1.pt").write_bytes(b"x" * 1000)


def lose(path: Path) -> None:
    (path / "shards/0.pt").unlink()


def tear(path: Path) -> None:
    os.truncate(path / "manifest.json", 30)


def modernise(path: Path) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))


def strip(path: Path) -> None:
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "1.pt: 10 bytes, 1000 in the manifest"),
        (flip, "1.pt: content differs from the manifest"),
        (lose, "0.pt: No such file or directory"),
        (tear, "unreadable manifest"),
        (modernise, "manifest format 2, this version reads 1"),
        (strip, "no manifest"),
    ],
)
def test_a_damaged_one_is_passed_over(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    make(tmp_path, 100)
    damage(make(tmp_path, 200))
    name, reasons = newest(tmp_path)
    assert name == "g0001-step00000100"
    assert reason in reasons["g0001-step00000200"]


@pytest.mark.parametrize("what", ["stat", "open", "load_json", "distrust_tree"])
def test_what_the_file_system_does_not_let_read_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    older, newer = make(tmp_path, 300), make(tmp_path, 400)
    place = Path if what in ("stat", "open") else checkpoint
    really, failures = getattr(place, what), [3]

    def stale(path: Path, *args: Any, **kwargs: Any) -> Any:
        if newer in (path, *path.parents) and failures[0]:
            failures[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return really(path, *args, **kwargs)

    monkeypatch.setattr(place, what, stale)
    monkeypatch.setattr(checkpoint, "AGAIN_S", 0.0)
    found, reasons = newest(tmp_path)
    assert (found, list(reasons)) == (older.name, [newer.name])
    assert reasons[newer.name].endswith("Stale file handle")
    failures[0] = 3
    patient = checkpoint.newest_verified(tmp_path, HASH, 2, patience_s=60.0)
    assert patient
    assert patient.path == newer


def test_one_of_another_experiment_or_size_is_passed_over(tmp_path: Path) -> None:
    make(tmp_path, 100)
    make(tmp_path, 200, world_size=4)
    make(tmp_path, 300, config_hash="other")
    name, reasons = newest(tmp_path)
    assert name == "g0001-step00000100"
    assert reasons == {
        "g0001-step00000300": "of another experiment (other, not abc)",
        "g0001-step00000200": "written by 4 ranks, not 2",
    }


def test_one_that_could_not_be_loaded_is_passed_over_until_somebody_says_otherwise(tmp_path: Path) -> None:
    older, newer = make(tmp_path, 100), make(tmp_path, 200)
    checkpoint_retention.mark_unusable(newer, "KeyError: 'param_groups'")
    assert newest(tmp_path) == (older.name, {newer.name: "marked as unusable: KeyError: 'param_groups'"})
    (newer / "unusable").unlink()
    assert newest(tmp_path) == (newer.name, {})


@pytest.mark.parametrize(("stage", "loadable"), [(0, False), (1, True), (2, True), (3, False), (None, True)])
def test_shards_of_another_kind_of_zero_are_passed_over(tmp_path: Path, stage: int | None, loadable: bool) -> None:
    make(tmp_path, 100)  # with stage 1
    assert (checkpoint.newest_verified(tmp_path, HASH, 2, zero_stage=stage) is not None) == loadable


KILLED = """
import os, signal, sys
from pathlib import Path
from dscampaign.jobs.shared import checkpoint, checkpoint_retention
from tests.unit.jobs.test_checkpoint import make

calls = 0
def trace(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.mkdir", "os.truncate") and sys.argv[1] in str(arguments[0]):
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(trace)
make(Path(sys.argv[1]), 200)
"""


def test_killed_at_any_moment_leaves_a_complete_one_or_none(tmp_path: Path) -> None:
    """Kills the writer at its first, second, ... file operation until it gets through."""
    script = [sys.executable, "-c", KILLED]
    for moment in range(1, 50):
        folder = tmp_path / str(moment)
        make(folder, 100)
        process = subprocess.run([*script, str(folder), str(moment)], cwd=REPOSITORY, check=False)
        name, reasons = newest(folder)
        assert reasons == {}
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert name == "g0001-step00000200"
    assert moment > 8
