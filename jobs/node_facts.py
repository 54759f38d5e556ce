"""What a node itself shows of an attempt: GPUs, the kernel's log, the job's memory. Begun before it, read after it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .gpus import GpuWatch
from .kernel_log import KernelLog

CGROUPS = Path("/sys/fs/cgroup")


class NodeFacts:
    """Looks at the node before and after an attempt.

    Args:
        gpus: those that the job asked of a node.
        visible_devices: CUDA_VISIBLE_DEVICES as Slurm set it.
    """

    def __init__(self, gpus: int, visible_devices: str) -> None:
        self._kernel = KernelLog()
        self._gpus = GpuWatch(gpus, visible_devices)
        self._oom_kills = oom_kill_count()

    def ready(self) -> None:
        """Waits until the look at the GPUs is done: a rank's memory would count as somebody else's."""
        self._gpus.wait()

    def end(self) -> dict[str, Any]:
        """The facts, by the names of the outcome's fields."""
        group = _memory_group()
        return {
            "oom_kills": oom_kill_count() - self._oom_kills,
            "gpus": self._gpus.facts(),
            "kernel": self._kernel.lines(),
            "memory_peak_bytes": _number(group, "memory.peak", "memory.max_usage_in_bytes"),
            "memory_limit_bytes": memory_limit_bytes(),
        }


def oom_kill_count() -> int:
    """How often the kernel killed a process of this control group for memory; 0 where that cannot be read."""
    for name in ("memory.events", "memory.oom_control"):
        found = re.search(r"^oom_kill (\d+)$", _read(_memory_group() / name), re.MULTILINE)
        if found:
            return int(found[1])
    return 0


def memory_limit_bytes() -> int | None:
    """Memory that this process's control group may use; None for no limit."""
    return _number(_memory_group(), "memory.max", "memory.limit_in_bytes")


def _memory_group() -> Path:
    """This process's control group of memory, of version 2 or 1."""
    lines = [line.split(":", 2) for line in _read(Path("/proc/self/cgroup")).splitlines() if line.count(":") >= 2]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return CGROUPS / "memory" / path.lstrip("/")
    path = next((path for _, controllers, path in lines if not controllers), "/")
    return CGROUPS / path.lstrip("/")


def _number(group: Path, *names: str) -> int | None:
    """The number in the first of these files that has one; "max", or what no machine has, is none."""
    for name in names:
        text = _read(group / name).strip()
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
