"""The checkpoint that `{resume_from}` names for a script of the user's own."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dscampaign.jobs.agent.script_checkpoints import newest


def state(path: Path, *, whole: bool = True, mtime: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"x" * 100)
    if not whole:
        path.write_bytes(path.read_bytes()[:60])
    for place in (path, path.parent):
        os.utime(place, (mtime, mtime))
    return path


def one_file_after_another(folder: Path) -> None:
    state(folder / "step_9.pt", mtime=9)
    state(folder / "step_10.pt", mtime=10)
    (folder / "log.txt").write_text("newer")


def killed_while_saving(folder: Path) -> None:
    state(folder / "step_9.pt", mtime=9)
    state(folder / "step_10.pt", mtime=10, whole=False)
    (folder / "step_11.pt").touch()


def accelerate_s_folders(folder: Path) -> None:
    state(folder / "step_9" / "optimizer.bin", mtime=9)
    state(folder / "step_10" / "optimizer.bin", mtime=10, whole=False)


def the_trainer_s(folder: Path) -> None:
    for step in (5, 10, 15):
        state(folder / f"checkpoint-{step}" / "optimizer.pt", mtime=100 - step)
    for step in (5, 10):
        (folder / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
    state(folder / "model" / "weights.bin", mtime=500)


def diffusers(folder: Path) -> None:
    for step in (5, 10, 15):
        state(folder / f"checkpoint-{step}" / "model.safetensors")
    for step in (5, 10):
        (folder / f"checkpoint-{step}" / "random_states_0.pkl").touch()


def one_s_own_numbers(folder: Path) -> None:
    for step in (9, 10):
        state(folder / f"checkpoint-{step}" / "state.pt")


def deepspeed_s(folder: Path) -> None:
    state(folder / "global_step5" / "mp_rank_00_model_states.pt", mtime=5)
    state(folder / "global_step9" / "mp_rank_00_model_states.pt", mtime=9, whole=False)
    (folder / "latest").write_text("global_step5\n")


def distributed(folder: Path) -> None:
    for step, last in ((5, ".metadata"), (10, "other")):
        (folder / f"step-{step}").mkdir()
        (folder / f"step-{step}" / "__0_0.distcp").write_text("x")
        (folder / f"step-{step}" / last).touch()
        os.utime(folder / f"step-{step}", (step, step))


def a_draft(folder: Path) -> None:
    state(folder / "g0001-step00000005" / "state.pt")
    state(folder / "last.pt.tmp")
    state(folder / ".hidden.pt")


@pytest.mark.parametrize(
    ("made", "expected", "skipped"),
    [
        (lambda _: None, None, []),
        (one_file_after_another, "step_10.pt", []),
        (killed_while_saving, "step_9.pt", ["step_11.pt", "step_10.pt"]),
        (accelerate_s_folders, "step_9", ["step_10"]),
        (the_trainer_s, "checkpoint-10", ["checkpoint-15"]),
        (diffusers, "checkpoint-10", ["checkpoint-15"]),
        (one_s_own_numbers, "checkpoint-10", []),
        (deepspeed_s, ".", []),
        (distributed, "step-5", ["step-10"]),
        (a_draft, None, []),
    ],
)
def test_the_newest_whole_checkpoint(
    tmp_path: Path, made: Callable[[Path], None], expected: str | None, skipped: list[str]
) -> None:
    folder, told = tmp_path / "checkpoints", list[str]()
    folder.mkdir()
    made(folder)
    found = newest(folder, lambda path, _: told.append(path.name))
    assert (found, told) == (str(folder / expected) if expected else "", skipped)


def test_a_run_without_a_folder_of_checkpoints(tmp_path: Path) -> None:
    assert newest(tmp_path / "none", lambda *_: None) == ""


def test_a_checkpoint_that_others_can_write_is_never_named(tmp_path: Path) -> None:
    state(tmp_path / "last.pt").chmod(0o666)
    told: list[str] = []
    assert newest(tmp_path, lambda _, reason: told.append(reason)) == ""
    assert "others can write" in told[0]
