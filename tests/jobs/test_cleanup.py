"""The marks of operators that nobody builds any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from dscampaign.jobs import cleanup
from dscampaign.jobs.cleanup import clear

BUILD = "import sys; from torch.utils.file_baton import FileBaton; FileBaton(sys.argv[1]).try_acquire(); "


def test_the_mark_of_a_killed_build_goes(tmp_path: Path) -> None:
    mark = tmp_path / "cpu_adam" / "lock"
    mark.parent.mkdir()
    killed = subprocess.run([sys.executable, "-c", BUILD + "import os; os.kill(os.getpid(), 9)", mark], check=False)
    assert killed.returncode == -9
    assert mark.exists()
    assert clear({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == [mark]
    assert FileBaton(str(mark)).try_acquire()


def test_the_mark_of_a_build_that_goes_on_stays(tmp_path: Path) -> None:
    mark = tmp_path / "cpu_adam" / "lock"
    mark.parent.mkdir()
    command = [sys.executable, "-c", BUILD + "print(flush=True); input()", str(mark)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as building:
        assert building.stdout
        building.stdout.readline()
        assert clear({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == []
        building.kill()
    assert clear({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == [mark]


def test_where_nothing_is_said_it_is_pytorch_s_own_folder(tmp_path: Path) -> None:
    mark = tmp_path / "torch_extensions" / "py311_cpu" / "cpu_adam" / "lock"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert clear({"XDG_CACHE_HOME": str(tmp_path)}) == [mark]


def test_on_a_shared_disk_another_node_may_be_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "on_local_disk", lambda _: False)
    (tmp_path / "lock").touch()
    assert clear({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == []
    assert (tmp_path / "lock").exists()


def test_nothing_built_yet(tmp_path: Path) -> None:
    assert clear({"TORCH_EXTENSIONS_DIR": str(tmp_path / "none")}) == []
