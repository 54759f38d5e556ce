"""What is compiled lies where only this user can have put it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dscampaign.files.ownership import private_folder
from dscampaign.jobs.agent import cleanup


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def planted_link(folder: Path) -> None:
    folder.parent.joinpath("elsewhere").mkdir()
    folder.symlink_to(folder.parent / "elsewhere")


def open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def open_to_the_group(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


def of_another(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)


def replaceable(folder: Path) -> None:
    folder.parent.chmod(0o777)


def a_file(folder: Path) -> None:
    folder.touch()


def test_the_nodes_disk_is_asked_first(tmp_path: Path) -> None:
    found = cleanup.compile_caches({"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": "/mine"})
    folder = tmp_path / f"dscampaign-{os.geteuid()}"
    assert found == {
        "TORCH_EXTENSIONS_DIR": str(folder / "extensions"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cleanup.compile_caches({"TMPDIR": str(tmp_path), "TRITON_CACHE_DIR": "/mine"}) == found


@pytest.mark.parametrize("plant", [planted_link, open_to_all, open_to_the_group, of_another, replaceable, a_file])
def test_what_somebody_else_may_have_written_is_not_used(
    tmp_path: Path, plant: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    if plant is of_another and os.geteuid():
        pytest.skip("only root can give a folder away")
    public = tmp_path / "public"
    public.mkdir()
    folder = public / f"dscampaign-{os.geteuid()}"
    plant(folder)
    assert private_folder(folder)
    assert not cleanup.compile_caches({"TMPDIR": str(public)})["TRITON_CACHE_DIR"].startswith(str(public))
    assert str(folder) in capsys.readouterr().err
