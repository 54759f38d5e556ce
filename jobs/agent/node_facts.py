"""A node's own evidence of an attempt: the machine, its GPUs, and the memory of the job.

Without a control group of the attempt's own, its memory is sampled: the proportional set size, for which the kernel
walks all pages of a process.
"""

from __future__ import annotations

import os
import platform
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dscampaign.jobs.shared.documents import Whole

from .gpus import GpuWatch

PROC: Final = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
OS_RELEASE: Final = Path("/etc/os-release")

OF_GROUP, OF_PROCESSES = "cgroup", "processes"
"""Source of a peak of host memory: the job's own control group, or its sampled processes."""
_PEAK: Final = ("memory.peak", "memory.max_usage_in_bytes")

INTERVAL_S: Final = 1.0
MOST_OF_A_CORE: Final = 0.02  # looking takes longer the more pages there are; then it is done less often
WAIT_S: Final = 0.5  # for a look that is under way when the attempt has ended
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_PSS: Final = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    """A node during an attempt; "" and None for unknown facts. `usable` of its `cores` are the job's."""

    cpu: str = ""
    cores: Whole | None = None
    usable: Whole | None = None
    system: str = ""
    kernel: str = ""


class NodeFacts:
    """Looks at the node before and after an attempt."""

    def __init__(self, gpus: int, visible_devices: str) -> None:
        self._gpus = GpuWatch(gpus, visible_devices)
        self._oom_kills = oom_kill_count()
        self._group = _own_group(os.environ.get("SLURM_JOB_ID", ""))
        self._processes = ProcessMemory(os.getpid())

    def ready(self) -> None:
        """Wait, before the first rank starts, for the look at the GPUs."""
        self._gpus.wait()
        if self._group is None:
            self._processes.start()

    def end(self) -> dict[str, Any]:
        """Return the facts by the names of the outcome's fields."""
        peak = _number(self._group, *_PEAK) if self._group else self._processes.stop()
        of = OF_GROUP if self._group else OF_PROCESSES
        return {
            "oom_kills": oom_kill_count() - self._oom_kills,
            "gpus": self._gpus.facts(),
            "memory_peak_bytes": peak,
            "memory_peak_of": of if peak is not None else "",
            "memory_limit_bytes": memory_limit_bytes(),
            "machine": Machine(
                cpu=_field(read(PROC / "cpuinfo"), r"model name\s*:") or platform.machine(),
                cores=os.cpu_count(),
                usable=len(os.sched_getaffinity(0)),
                system=_field(read(OS_RELEASE), r"PRETTY_NAME="),
                kernel=platform.release(),
            ),
        }


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(.+)$", text, re.MULTILINE)
    return " ".join(match[1].strip().strip("\"'").split())[:200] if match else ""


# -- the job's control group ----------------------------------------------------------------------------------


def _own_group(job: str) -> Path | None:
    """Return this process's control group of memory if it keeps a peak and holds only a step of this Slurm job.

    A peak counts all processes that ever ran in a group: also of a container, or of somebody who works by hand.
    """
    group = _memory_group()
    its = job and f"job_{job}" in group.parts and any(part.startswith("step_") for part in group.parts)
    members = {int(word) for word in read(group / "cgroup.procs").split() if word.isdigit()}
    alone = bool(its) and members <= set(_tree(os.getpid()))
    return group if alone and _number(group, *_PEAK) is not None else None


def oom_kill_count() -> int:
    """Return how often the kernel killed a process of this control group for memory; 0 if unknown."""
    for name in ("memory.events", "memory.oom_control"):
        if match := re.search(r"^oom_kill (\d+)$", read(_memory_group() / name), re.MULTILINE):
            return int(match[1])
    return 0


def memory_limit_bytes() -> int | None:
    """Return the memory that this process's control group may use; None for no limit."""
    return _number(_memory_group(), "memory.max", "memory.limit_in_bytes")


def _memory_group() -> Path:
    lines = [line.split(":", 2) for line in read(Path("/proc/self/cgroup")).splitlines() if line.count(":") >= 2]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return CGROUPS / "memory" / path.lstrip("/")
    path = next((path for _, controllers, path in lines if not controllers), "/")
    return CGROUPS / path.lstrip("/")


def _number(group: Path, *names: str) -> int | None:
    """Return the first number in these files; "max", or more than any machine has, does not count."""
    for name in names:
        text = read(group / name).strip()
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None


# -- the memory of processes ----------------------------------------------------------------------------------


class ProcessMemory:
    """Samples a process and its descendants about once a second, and keeps the highest sum."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> int | None:
        """End it; return the highest sum in bytes, None if nothing could be read."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)
        return self._peak

    def _run(self) -> None:
        rest_s = 0.0
        while not self._stop.wait(rest_s):
            begin_s = time.perf_counter()
            if (held := tree_bytes(self._root)) is not None:
                self._peak = max(held, self._peak or 0)
            rest_s = max(INTERVAL_S, (time.perf_counter() - begin_s) / MOST_OF_A_CORE)


def tree_bytes(root: int) -> int | None:
    """Return the memory of a process and its descendants now, in bytes; None if none of them can be read."""
    sizes = [size for pid in _tree(root) if (size := _process_bytes(pid)) is not None]
    return sum(sizes) if sizes else None


def _tree(root: int) -> Iterator[int]:
    """Yield the ids of a process and its descendants.

    psutil's `children` gives up if a node hides others' processes, and its `process_iter` takes four times as long.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for entry in os.scandir(PROC):
        if entry.name.isdigit() and (stat := read(Path(entry, "stat"))):
            children[int(stat.rsplit(")", 1)[1].split()[1])].append(int(entry.name))
    left = [root]
    while left:
        pid = left.pop()
        yield pid
        left += children[pid]


def _process_bytes(pid: int) -> int | None:
    if match := _PSS.search(read(PROC / str(pid) / "smaps_rollup")):
        return int(match[1]) * 1024
    words = read(PROC / str(pid) / "statm").split()
    return (int(words[1]) - int(words[2])) * _PAGE if len(words) > 2 else None


def read(path: Path) -> str:
    """Return the file's text; "" if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
