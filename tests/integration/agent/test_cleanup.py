"""Marks of operators that nobody builds any more, and buffers of ranks that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.file_baton import FileBaton

from dscampaign.jobs.agent import cleanup
from dscampaign.jobs.agent.cleanup import clear_build_locks, clear_shared_memory

OURS = f"dscampaign-{os.geteuid()}"
"""The folder in which `node_cache` lets ranks build."""
BUILD = "import sys; from torch.utils.file_baton import FileBaton; FileBaton(sys.argv[1]).try_acquire(); "


def test_the_lock_of_a_killed_build_goes(tmp_path: Path) -> None:
    builds = tmp_path / OURS / "extensions"
    lock = builds / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    killed = subprocess.run([sys.executable, "-c", BUILD + "import os; os.kill(os.getpid(), 9)", lock], check=False)
    assert killed.returncode == -9
    assert lock.exists()
    assert clear_build_locks({"TORCH_EXTENSIONS_DIR": str(builds)}) == [lock]
    assert FileBaton(str(lock)).try_acquire()


@pytest.mark.parametrize("variable", ["TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"])
def test_in_a_folder_of_the_user_s_a_lock_is_named_and_stays(tmp_path: Path, variable: str) -> None:
    lock = tmp_path / ("thesis" if variable.startswith("TORCH") else "torch_extensions/py311_cpu/cpu_adam") / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert clear_build_locks({variable: str(tmp_path)}) == [lock]
    assert lock.exists()


def test_the_lock_of_a_build_that_goes_on_stays(tmp_path: Path) -> None:
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    command = [sys.executable, "-c", BUILD + "print(flush=True); input()", str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as building:
        assert building.stdout
        building.stdout.readline()
        assert clear_build_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == []
        building.kill()
    assert clear_build_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == [lock]


def test_on_a_shared_disk_another_node_may_be_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "on_local_disk", lambda _: False)
    (tmp_path / "lock").touch()
    assert clear_build_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == []
    assert (tmp_path / "lock").exists()


def test_nothing_built_yet(tmp_path: Path) -> None:
    assert clear_build_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "none")}) == []


def test_only_the_attempt_s_own_buffers_go(tmp_path: Path) -> None:
    def buffer(user: int, address: str, port: int, rank: int) -> Path:
        path = tmp_path / f"deepspeed_allreduce_buffer_{user}_{address}_{port}_{rank}"
        path.write_bytes(b"0")
        return path

    me = os.getuid()
    own = [buffer(me, "10.0.0.1", 2950, rank) for rank in range(2)]
    others = [buffer(me, "10.0.0.1", 29501, 0), buffer(me, "10.0.0.2", 2950, 0), buffer(me + 1, "10.0.0.1", 2950, 0)]
    clear_shared_memory("10.0.0.1", 2950, tmp_path)
    assert set(tmp_path.iterdir()) == set(others)
    assert not any(path.exists() for path in own)


def test_a_node_without_shared_memory_has_nothing_to_clear_shared_memory(tmp_path: Path) -> None:
    clear_shared_memory("10.0.0.1", 2950, tmp_path / "none")
