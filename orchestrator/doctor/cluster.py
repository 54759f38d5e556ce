"""What a cluster has, as Slurm tells it: partitions, nodes, settings. It only asks, and through `slurm.py`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import Unreachable
from ..executors.slurm import NO_ACCOUNTING, ask

COMMANDS: Final = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "srun")
_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z]\w*)=(\S*)")
_GPUS: Final = re.compile(r"(?:^|,)gpu(?::((?!\d+(?:[(,]|$))[^:,(]+))?(?::(\d+))?")
_SETTING: Final = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_LIMIT: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d+):(\d+)")
_AWAY: Final = frozenset(
    {"DOWN", "DRAIN", "FAIL", "FAILING", "MAINT", "NOT_RESPONDING", "DRAINED", "DRAINING", "ERROR"}
)


@dataclass(frozen=True)
class Partition:
    """A partition.

    Attributes:
        state: UP, DOWN, DRAIN or INACTIVE.
        max_time_min: longest time limit of a job; None for no limit.
        max_nodes: most nodes of a job; None for no limit.
        preempt_mode: OFF, or how its jobs make room.
    """

    name: str
    default: bool = False
    state: str = "UP"
    max_time_min: int | None = None
    max_nodes: int | None = None
    preempt_mode: str = "OFF"


@dataclass(frozen=True)
class ClusterNode:
    """A node as Slurm describes it.

    Attributes:
        gpus: how many it has of each type; "" for those without one.
        memory_mb: that jobs can ask for.
        usable: whether Slurm starts jobs there, now or later.
    """

    name: str
    partitions: frozenset[str]
    gpus: Mapping[str, int] = field(default_factory=dict)
    memory_mb: int = 0
    cpus: int = 0
    features: frozenset[str] = frozenset()
    usable: bool = True


@dataclass(frozen=True)
class Cluster:
    """What Slurm answered.

    Attributes:
        missing: commands that are not on PATH.
        version: such as `22.05.8`, "" where it did not say.
        trouble: why the controller did not answer, "" if it did.
        accounting: "kept", "none" where there is none, or why it did not answer.
        settings: of slurm.conf, by name.
    """

    missing: tuple[str, ...] = ()
    version: str = ""
    trouble: str = ""
    accounting: str = ""
    partitions: tuple[Partition, ...] = ()
    nodes: tuple[ClusterNode, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def cluster() -> Cluster:
    """Asks Slurm. Nothing that fails is raised: it is part of the answer."""
    missing = tuple(name for name in COMMANDS if shutil.which(name) is None)
    if "scontrol" in missing or "sbatch" in missing:
        return Cluster(missing, trouble=f"{' and '.join(missing)} not on PATH")
    try:
        version = (ask(["scontrol", "--version"]).stdout.split() or [""])[-1]  # Debian calls it slurm-wlm
        partitions = tuple(map(_partition, _records("partition")))
        nodes = tuple(map(_node, _records("node")))
        settings = dict(_SETTING.findall(_answer(["scontrol", "show", "config"])))
    except Unreachable as exc:
        return Cluster(missing, trouble=exc.message)
    return Cluster(missing, version, "", _accounting(), partitions, nodes, settings)


def _records(kind: str) -> Iterator[dict[str, str]]:
    """What Slurm has of a kind, each as fields; of two equal names the first counts, the rest is free text."""
    for line in _answer(["scontrol", "--all", "--oneliner", "show", kind]).splitlines():
        fields: dict[str, str] = {}
        for name, value in _FIELD.findall(line):
            fields.setdefault(name, value)
        if fields:
            yield fields


def _answer(command: list[str]) -> str:
    """What a command prints.

    Raises:
        Unreachable: it fails.
    """
    done: subprocess.CompletedProcess[str] = ask(command)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["failed"])[-1]
        raise Unreachable(f"{command[0]}: {last.removeprefix(f'{command[0]}: ')}")
    return done.stdout


def _accounting() -> str:
    try:
        done = ask(["sacct", "-nPX", "-S", "now-1minutes", "-o", "JobID"])
    except Unreachable as exc:
        return exc.message
    if NO_ACCOUNTING.search(done.stderr):
        return "none"
    return f"sacct: {(done.stderr.strip().splitlines() or ['failed'])[-1]}" if done.returncode else "kept"


def _partition(fields: Mapping[str, str]) -> Partition:
    return Partition(
        fields.get("PartitionName", ""),
        fields.get("Default") == "YES",
        fields.get("State", "UP"),
        _minutes(fields.get("MaxTime", "")),
        _whole(fields.get("MaxNodes", "")) or None,
        fields.get("PreemptMode", "OFF"),
    )


def _whole(text: str) -> int:
    """A number as scontrol prints it; 0 for UNLIMITED, or where there is none."""
    return int(text) if text.isdigit() else 0


def _minutes(text: str) -> int | None:
    """Minutes of a time as scontrol prints it, `7-00:00:00`; None for UNLIMITED."""
    found = _LIMIT.fullmatch(text)
    return int(found[1] or 0) * 1440 + int(found[2]) * 60 + int(found[3]) if found else None


def _node(fields: Mapping[str, str]) -> ClusterNode:
    state = fields.get("State", "")
    return ClusterNode(
        fields.get("NodeName", ""),
        frozenset(fields.get("Partitions", "").split(",")),
        gpus_of(fields.get("Gres", "")),
        _whole(fields.get("RealMemory", "")),
        _whole(fields.get("CPUTot", "")),
        frozenset(fields.get("ActiveFeatures", "").split(",")) - {"(null)", ""},
        not state.endswith("*") and not _AWAY & set(state.split("+")),
    )


def gpus_of(gres: str) -> dict[str, int]:
    """GPUs of each type in Slurm's `gpu:h100:8(S:0-1),nvme:1`; the type is "" where it names none."""
    found: dict[str, int] = {}
    for kind, number in _GPUS.findall(gres):
        found[kind] = found.get(kind, 0) + int(number or 1)
    return found
