"""A node's own evidence of an attempt: GPUs, the kernel's log, the job's memory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .gpus import GpuWatch
from .host_memory import ProcessMemory, group_pids, read, tree
from .kernel_log import KernelLog
from .machine import MachineWatch

CGROUPS = Path("/sys/fs/cgroup")

OF_GROUP, OF_PROCESSES = "cgroup", "processes"
"""Source of a peak of host memory: the job's own control group, or its sampled processes."""

_PEAK = ("memory.peak", "memory.max_usage_in_bytes")


class NodeFacts:
    """Looks at the node before and after an attempt."""

    def __init__(self, gpus: int, visible_devices: str) -> None:
        self._kernel = KernelLog()
        self._gpus = GpuWatch(gpus, visible_devices)
        self._oom_kills = oom_kill_count()
        self._group = _own_group(os.environ.get("SLURM_JOB_ID", ""))
        self._processes = ProcessMemory(os.getpid())
        self._machine = MachineWatch()

    def ready(self) -> None:
        """Wait, before the first rank starts, for the look at the GPUs: ranks' memory would count as another user's."""
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
            "kernel": self._kernel.lines(),
            "memory_peak_bytes": peak,
            "memory_peak_of": of if peak is not None else "",
            "memory_limit_bytes": memory_limit_bytes(),
            "machine": self._machine.end(),
        }


def _own_group(job: str) -> Path | None:
    """Return this process's control group of memory if it keeps a peak and holds only a step of this Slurm job.

    A peak counts all processes that ever ran in a group. So the peak of a container or a machine is not the attempt's,
    nor is that of a job in which somebody works by hand: then other processes are in it when this process begins.
    """
    group = _memory_group()
    its = job and f"job_{job}" in group.parts and any(part.startswith("step_") for part in group.parts)
    alone = bool(its) and group_pids(group) <= set(tree(os.getpid()))
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
    """Return the number in the first of these files that has one; "max", or more than any machine has, is none."""
    for name in names:
        text = read(group / name).strip()
        if text.isdigit() and int(text) < 2**60:
            return int(text)
    return None
