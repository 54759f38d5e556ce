"""Remove leftovers of this user's earlier attempts on a node."""

from __future__ import annotations

import glob
import os
import signal
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import Final

from dscampaign.files import ours
from dscampaign.files.file_systems import on_local_disk
from dscampaign.jobs.shared.layout import SHARED_MEMORY

from . import node_cache

_POLL_S: Final = 0.05
_SHOWN: Final = 200
"""Characters of a command that are reported."""


def clear_build_locks(env: Mapping[str, str]) -> list[Path]:
    """Remove the lock files of builds that no process of this user on this node has open; return all that were left.

    PyTorch compiles DeepSpeed's operators when a rank first needs them. A lock file exists during the build, and all
    other processes wait until it is gone: a rank that is killed meanwhile leaves it, and each later attempt on the node
    would wait for the rest of its time.

    Only from a local disk: on a shared disk another node's process may be building. And only from the folder that
    `node_cache` chose: in a folder of the user's own they stay.
    """
    folder = _folder(env)
    if not on_local_disk(folder):
        return []
    left = [lock for lock in folder.glob("**/lock") if _left(lock)]
    for lock in left:
        if node_cache.is_ours(folder):
            ours.remove(lock, folder)
    return left


def clear_shared_memory(address: str, port: int, memory: Path = SHARED_MEMORY) -> None:
    """Remove the buffers of this user's ranks that met at ``address`` and ``port``; they have ended.

    DeepSpeed's all-reduce for ranks on CPUs keeps 66 MiB of each in files that it never removes (as of 0.19.8): on a
    node without GPUs every attempt would take memory until the node starts again.
    """
    name = glob.escape(f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_")
    for left in memory.glob(f"{name}*"):
        with suppress(OSError):
            left.unlink()


def end_left_processes(attempt_dir: Path, grace_s: float) -> list[str]:
    """End processes that this node's ranks left in sessions of their own; return their commands.

    Slurm ends them with the job only if it tracks processes by cgroup; otherwise they would keep memory and ports of
    the node. Their environment identifies them: no process of another agent has it.
    """
    marks = {f"CAMPAIGN_ATTEMPT_DIR={attempt_dir}".encode(), f"CAMPAIGN_AGENT_PID={os.getpid()}".encode()}
    ended: dict[int, str] = {}
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # some are just about to leave
        left = _with_environment(marks)
        ended |= left if number else {}
        for pid in left:
            with suppress(OSError):
                os.kill(pid, number)
        until_s = time.monotonic() + grace_s
        while _with_environment(marks) and time.monotonic() < until_s:
            time.sleep(_POLL_S)
    return list(ended.values())


def _with_environment(marks: AbstractSet[bytes]) -> dict[int, str]:
    processes = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            if marks <= set((process / "environ").read_bytes().split(b"\0")):
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
                processes[int(process.name)] = " ".join(words).strip()[:_SHOWN]
    return processes


def _folder(env: Mapping[str, str]) -> Path:
    if chosen := env.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def _left(lock: Path) -> bool:
    """Return whether the process that made the lock file has ended: while it lives, it has the file open."""
    with suppress(OSError):
        return lock.lstat().st_uid == os.getuid() and not any(_same(file, lock) for file in _open_files())
    return False


def _open_files() -> Iterator[Path]:
    """Yield links of the kernel: psutil returns the other process's paths, which a container may see as other files."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            yield from (process / "fd").iterdir()


def _same(file: Path, lock: Path) -> bool:
    with suppress(OSError):
        return lock.samefile(file)
    return False
