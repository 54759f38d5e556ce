"""Describe a node, and how busy its processors were during an attempt, other jobs' work included."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.documents import Whole

from .host_memory import PROC, read

OS_RELEASE: Final = Path("/etc/os-release")


@dataclass(frozen=True)
class Machine:
    """A node during an attempt; "" and None for unknown facts.

    Attributes:
        cpu: model of its processors.
        cores: logical cores of the node; `usable` cores are those of the job.
        system: distribution, with its version.
        kernel: release of the kernel.
        busy_pct: share of all its cores' time in which they worked, in percent.
    """

    cpu: str = ""
    cores: Whole | None = None
    usable: Whole | None = None
    system: str = ""
    kernel: str = ""
    busy_pct: Whole | None = None


class MachineWatch:
    """Counts the node's busy time from its creation on."""

    def __init__(self) -> None:
        self._begin = _cpu_ticks()

    def end(self) -> Machine:
        """Return the node, and how busy it was."""
        busy, whole = (now - before for now, before in zip(_cpu_ticks(), self._begin, strict=True))
        return Machine(
            cpu=_field(read(PROC / "cpuinfo"), r"model name\s*:") or platform.machine(),
            cores=os.cpu_count(),
            usable=len(os.sched_getaffinity(0)),
            system=_field(read(OS_RELEASE), r"PRETTY_NAME="),
            kernel=platform.release(),
            busy_pct=min(100, round(100 * busy / whole)) if whole > 0 and busy >= 0 else None,
        )


def _cpu_ticks() -> tuple[int, int]:
    """Return the busy time and all time of all cores since the node started; zeros if unknown.

    See proc(5): user, nice, system, idle, iowait, irq, softirq, steal; further values are part of the first two.
    """
    words = read(PROC / "stat").partition("\n")[0].split()[1:9]
    if len(words) < 5 or not all(word.isdigit() for word in words):
        return 0, 0
    ticks = [int(word) for word in words]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _field(text: str, name: str) -> str:
    match = re.search(rf"^{name}\s*(.+)$", text, re.MULTILINE)
    return " ".join(match[1].strip().strip("\"'").split())[:200] if match else ""
