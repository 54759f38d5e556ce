"""This user's own files and processes on a node: folders for compiled code, and leftovers of earlier attempts.

Compiled code is run, so its folder must be this user's alone; on a shared disk nodes would wait for each other.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from dscampaign.files import ours
from dscampaign.files.file_systems import on_local_disk
from dscampaign.files.ownership import private_folder

_POLL_S: Final = 0.05
_CACHES: Final = {
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
}


def compile_caches(environ: Mapping[str, str], image: str = "") -> dict[str, str]:
    """Return the caches' variables that the environment does not set, each with a folder on this node.

    An image must not load code that another image's compiler and torch have built.
    """
    suffix = f"-{hashlib.sha256(image.encode()).hexdigest()[:8]}" if image else ""
    folder = Path.home() / ".cache" / "dscampaign" / f"{socket.gethostname()}{suffix}"
    for public in dict.fromkeys((environ.get("TMPDIR") or "/tmp", "/tmp")):  # noqa: S108 - looked at before it is used
        local = Path(public, f"dscampaign-{os.geteuid()}{suffix}")
        if not (doubt := private_folder(local)):
            folder = local
            break
        print(f"compiled kernels are not kept there: {doubt}", file=sys.stderr, flush=True)
    return {name: str(folder / below) for name, below in _CACHES.items() if not environ.get(name)}


def clear_build_locks(folder: Path) -> list[Path]:
    """Remove the lock files of builds that no process of this user on this node has open; return them.

    Ranks wait for the lock of a build: that of a killed rank would hold up each later attempt on the node.
    """
    if not on_local_disk(folder):  # another node's process may be building
        return []
    left = [lock for lock in folder.glob("**/lock") if lock.lstat().st_uid == os.getuid()]
    if left:
        opened = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has just ended, or is somebody else's
                opened |= {_file_id(file) for file in (process / "fd").iterdir()}
        left = [lock for lock in left if _file_id(lock) not in opened]
    for lock in left:
        ours.remove(lock, folder)
    return left


def end_left_processes(attempt_dir: Path, grace_s: float) -> None:
    """End processes of an attempt that outlived their launcher, in sessions of their own."""
    for number in (0, signal.SIGTERM, signal.SIGKILL):  # some are just about to leave
        for pid in _processes(attempt_dir):
            with suppress(OSError):
                os.kill(pid, number)
        until_s = time.monotonic() + grace_s
        while _processes(attempt_dir) and time.monotonic() < until_s:
            time.sleep(_POLL_S)


def is_of(attempt_dir: Path, pid: int | str) -> bool:
    """Return whether a process is of this agent's attempt; in a container, a pid may be another's on the node."""
    marks = {f"CAMPAIGN_ATTEMPT_DIR={attempt_dir}".encode(), f"CAMPAIGN_AGENT_PID={os.getpid()}".encode()}
    try:
        return marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:  # it has ended, or is somebody else's
        return False


def _processes(attempt_dir: Path) -> list[int]:
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if is_of(attempt_dir, process.name)]


def _file_id(file: Path) -> tuple[int, int]:
    with suppress(OSError):
        info = file.stat()
        return info.st_dev, info.st_ino
    return -1, -1
