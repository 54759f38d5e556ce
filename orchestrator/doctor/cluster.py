"""Ask Slurm for a cluster's partitions, nodes and accounting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.slurm_commands import NO_ACCOUNTING, ask
from dscampaign.orchestrator.spec.slurm_section import parse_time_min

_SINFO: Final = "%P|%a|%l|%s|%D|%T|%G|%m|%c|%b"
_OUT_OF_SERVICE: Final = ("down", "drain", "error", "fail", "inval", "maint", "unk")


@dataclass(frozen=True)
class Nodes:
    """Equal nodes of a partition: a line of sinfo.

    Attributes:
        state: the partition's: up, down, drain or inact.
        max_time_min: longest time limit of a job; None for no limit.
        max_nodes: most nodes of a job, "infinite" for no limit.
        in_service: whether Slurm starts jobs there, now or later.
        has: the resources that a job can request, in Slurm's terms: `gpu:h100:8, 1000000 MB, 96 cores, ib,nvlink`.
    """

    partition: str
    default: bool = False
    state: str = "up"
    max_time_min: int | None = None
    max_nodes: str = "infinite"
    count: int = 0
    in_service: bool = True
    memory_mb: int = 0
    has: str = ""


@dataclass(frozen=True)
class Cluster:
    """Slurm's answers.

    Attributes:
        trouble: why the controller did not answer, "" if it did.
        version: such as `22.05.8`.
        accounting: "kept", "none", or why it did not answer.
    """

    trouble: str = ""
    version: str = ""
    accounting: str = ""
    nodes: tuple[Nodes, ...] = ()


def inspect_cluster() -> Cluster:
    """Ask Slurm; a failure is part of the answer."""
    try:
        version = _answer("sinfo", "--version").split()[-1]  # Debian calls it slurm-wlm
        nodes = partitions()
    except Unreachable as exc:
        return Cluster(exc.message)
    return Cluster("", version, _accounting(), nodes)


def partitions() -> tuple[Nodes, ...]:
    """Return the nodes of every partition. Raises `Unreachable` if Slurm does not answer."""
    lines = _answer("sinfo", "--all", "--noheader", "--exact", "-o", _SINFO).splitlines()
    return tuple(_nodes(line) for line in lines if line.count("|") == _SINFO.count("|"))


def _answer(*command: str) -> str:
    done = ask(list(command))
    if done.returncode:
        raise Unreachable(f"{command[0]}: {_last_line(done.stderr).removeprefix(f'{command[0]}: ')}")
    return done.stdout


def _accounting() -> str:
    try:
        done = ask(["sacct", "-nPX", "-S", "now-1minutes", "-o", "JobID"])
    except Unreachable as exc:
        return exc.message
    if NO_ACCOUNTING.search(done.stderr):
        return "none"
    return f"sacct: {_last_line(done.stderr)}" if done.returncode else "kept"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["failed"])[-1]


def _nodes(line: str) -> Nodes:
    partition, state, time, size, count, node_state, gres, memory_mb, cpus, features = line.split("|")
    given = [re.sub(r"\([^)]*\)", "", gres), f"{memory_mb} MB", f"{cpus} cores", features.removesuffix("(null)")]
    return Nodes(
        partition.removesuffix("*"),
        default=partition.endswith("*"),
        state=state,
        max_time_min=parse_time_min(time) if time[:1].isdigit() else None,
        max_nodes=size.rpartition("-")[2],
        count=int(count),
        in_service=not node_state.endswith("*") and not node_state.startswith(_OUT_OF_SERVICE),
        memory_mb=int(memory_mb) if memory_mb.isdigit() else 0,
        has=", ".join(filter(None, given)),
    )
