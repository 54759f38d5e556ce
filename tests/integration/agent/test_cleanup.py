"""Locks of builds of operators whose process has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from dscampaign.jobs.agent import cleanup
from dscampaign.jobs.agent.cleanup import clear_build_locks

BUILD = "import sys; from torch.utils.file_baton import FileBaton; FileBaton(sys.argv[1]).try_acquire(); "


def test_the_lock_of_a_killed_build_goes(tmp_path: Path) -> None:
    builds = tmp_path / "extensions"
    lock = builds / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    killed = subprocess.run([sys.executable, "-c", BUILD + "import os; os.kill(os.getpid(), 9)", lock], check=False)
    assert killed.returncode == -9
    assert lock.exists()
    assert clear_build_locks(builds) == [lock]
    assert FileBaton(str(lock)).try_acquire()


def test_the_lock_of_a_build_that_goes_on_stays(tmp_path: Path) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    command = [sys.executable, "-c", BUILD + "print(flush=True); input()", str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as building:
        assert building.stdout
        building.stdout.readline()
        assert clear_build_locks(tmp_path) == []
        building.kill()
    assert clear_build_locks(tmp_path) == [lock]


def test_on_a_shared_disk_another_node_may_be_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "on_local_disk", lambda _: False)
    (tmp_path / "lock").touch()
    assert clear_build_locks(tmp_path) == []
    assert (tmp_path / "lock").exists()
