"""From what Slurm tells of a cluster to verdicts on what a spec asks of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from ..formatting import count
from ..spec.slurm_section import SlurmConfig
from .check import At, Check
from .check_host import numbers
from .cluster import Cluster, ClusterNode, Partition
from .requirements import Wants

TRIED: Final = (22, 5)
"""The version of Slurm that the tests run against."""

_AT: Final = At("slurm")
_PLAIN: Final = re.compile(r"[\w.-]+(?:[&,][\w.-]+)*")
"""A constraint of which every feature is needed; others are left to Slurm's own forecast."""
_MIB_PER_GB: Final = 1e9 / 2**20
_WARNS: Final = ("preempt_send_user_signal", "send_user_signal")


@dataclass(frozen=True)
class Forecast:
    """Slurm's word on one kind of job: when it would start, or why never (`refused`), or why nobody knows."""

    said: str
    refused: bool = False
    unknown: bool = False


def slurm_checks(cluster: Cluster, wants: Sequence[Wants], forecasts: Sequence[Forecast] = ()) -> Iterator[Check]:
    """Verdicts on a cluster.

    Args:
        cluster: What it answered.
        wants: What a spec asks of it; empty without one.
        forecasts: Slurm's word on each of these; fewer where it was not asked.
    """
    if cluster.trouble:
        hint = "is this a login node of a Slurm cluster? `executor: local` needs none"
        yield _AT.problem("slurm.controller", cluster.trouble, hint, away=True)
        return
    seen = f"answers, Slurm {cluster.version}; {count(len(cluster.nodes), 'node')}"
    if numbers(cluster.version) < TRIED:
        hint = f"campaigns are tried with {TRIED[0]}.{TRIED[1]:02}: look twice at the first runs"
        yield _AT.note("slurm.controller", seen, hint)
    else:
        yield _AT.ok("slurm.controller", seen)
    needed = [name for name in cluster.missing if name != "sinfo"]
    if needed:
        yield _AT.problem("slurm.commands", f"{', '.join(needed)} not on PATH", "install Slurm's commands here")
    yield _accounting(cluster)
    for index, want in enumerate(wants):
        yield from _want(cluster, want)
        if index < len(forecasts):
            yield _forecast(forecasts[index], want)


def _accounting(cluster: Cluster) -> Check:
    if cluster.accounting == "kept":
        return _AT.ok("slurm.accounting", "sacct answers")
    if cluster.accounting == "none":
        seen = "no slurmdbd: Slurm forgets an ended job after MinJobAge"
        return _AT.note("slurm.accounting", seen, "keep a reconciler running: `campaign reconcile --watch`")
    return _AT.warning("slurm.accounting", cluster.accounting, "ask the site's administrators: how jobs ended is in it")


def _want(cluster: Cluster, want: Wants) -> Iterator[Check]:
    slurm = want.config.slurm
    found: list[Partition] = []
    for name in _partitions(cluster, slurm):
        partition = next((p for p in cluster.partitions if p.name == name), None)
        yield _partition(cluster, name, partition, slurm)
        found += [partition] if partition else []
    if found:
        yield _nodes(cluster, found, want)
        yield from _preemption(cluster, found, want)


def _partitions(cluster: Cluster, slurm: SlurmConfig) -> list[str]:
    default = [p.name for p in cluster.partitions if p.default] or ["the default one"]
    return slurm.partition.split(",") if slurm.partition else default


def _partition(cluster: Cluster, name: str, partition: Partition | None, slurm: SlurmConfig) -> Check:
    if partition is None:
        names = [p.name for p in cluster.partitions]
        hint = _did_you_mean(name, names) or f"there are: {', '.join(names)}"
        return _AT.problem("slurm.partition", f"there is no partition {name}", hint)
    if partition.state != "UP":
        hint = "wait, or choose another partition"
        return _AT.problem("slurm.partition", f"{name} is {partition.state}: it starts no jobs", hint, away=True)
    if partition.max_time_min is not None and slurm.time_min > partition.max_time_min:
        seen = f"{name} allows {partition.max_time_min:,} min, slurm.time is {slurm.time_min:,} min"
        return _AT.problem(
            "slurm.partition", seen, f"write `time: {partition.max_time_min}`: a run resumes in a new job"
        )
    if partition.max_nodes is not None and slurm.nodes > partition.max_nodes:
        seen = f"{name} allows {partition.max_nodes} nodes a job, slurm.nodes is {slurm.nodes}"
        return _AT.problem("slurm.partition", seen, f"use at most {partition.max_nodes}")
    return _AT.ok("slurm.partition", f"{name} is up")


def _nodes(cluster: Cluster, partitions: Sequence[Partition], want: Wants) -> Check:
    """Whether enough nodes of the partitions have what is asked for, and if not, what it is that they lack."""
    slurm, names = want.config.slurm, {p.name for p in partitions}
    where = "/".join(sorted(names))
    nodes = [node for node in cluster.nodes if node.partitions & names]
    fit = [node for node in nodes if _has(node, slurm)]
    lack = (
        _lack_gpus(nodes, slurm, where)
        or (_lack_anything(nodes, slurm, where) if not fit else None)
        or _lack_nodes(fit, slurm, where)
        or _lack_memory(fit, want)
    )
    usable = sum(node.usable for node in fit)
    return lack or _AT.ok("slurm.nodes", f"{usable} nodes of {where} have what is asked for{_asked(slurm)}")


def _lack_nodes(fit: Sequence[ClusterNode], slurm: SlurmConfig, where: str) -> Check | None:
    seen = f"{count(len(fit), 'node')} of {where} would do, {slurm.nodes} asked for"
    if len(fit) < slurm.nodes:
        return _AT.problem("slurm.nodes", seen, "use fewer nodes")
    if (usable := sum(node.usable for node in fit)) < slurm.nodes:
        hint = "`sinfo -R` says why; jobs wait until they come back"
        return _AT.warning("slurm.nodes", f"{seen}, but only {usable} in service", hint)
    return None


def _lack_memory(fit: Sequence[ClusterNode], want: Wants) -> Check | None:
    most_gb = max(node.memory_mb for node in fit) / _MIB_PER_GB
    if most_gb >= want.host_gb:
        return None
    seen = f"the model takes {want.host_gb:,.0f} GB of a node's memory ({want.named}), nodes have {most_gb:,.0f} GB"
    return _AT.problem("slurm.nodes", seen, "use more nodes or fewer ranks on each, or offload less")


def _asked(slurm: SlurmConfig) -> str:
    parts = [f"{slurm.gpus} × {slurm.gpu_type or 'GPU'}"] if slurm.gpus else []
    parts += [f"{slurm.mem}B" if slurm.mem[-1:].isalpha() else f"{slurm.mem} MB"] if slurm.mem_mb and slurm.mem else []
    return f": {', '.join(parts)}" if parts else ""


def _lack_gpus(nodes: Sequence[ClusterNode], slurm: SlurmConfig, where: str) -> Check | None:
    """A kind or a number of GPUs that no node of the partition has."""
    kinds = sorted({kind for node in nodes for kind in node.gpus})
    if not slurm.gpus:
        return None
    if not kinds:
        return _AT.problem("slurm.nodes", f"no node of {where} has a GPU", "choose a partition with GPUs")
    if slurm.gpu_type is not None and slurm.gpu_type not in kinds:
        has = ", ".join(filter(None, kinds)) or "GPUs without a type"
        near = _did_you_mean(slurm.gpu_type, [kind for kind in kinds if kind])
        hint = near or f"write `gpus_per_node: {f'{kinds[-1]}:' if kinds[-1] else ''}{slurm.gpus}`"
        return _AT.problem("slurm.nodes", f"no node of {where} has GPUs of type {slurm.gpu_type}, but {has}", hint)
    if (most := max(_gpus(node, slurm.gpu_type) for node in nodes)) < slurm.gpus:
        seen = f"a node of {where} has at most {count(most, 'GPU')}, {slurm.gpus} asked for"
        return _AT.problem("slurm.nodes", seen, f"write `gpus_per_node: {most}`, and more `nodes`")
    return None


def _has(node: ClusterNode, slurm: SlurmConfig) -> bool:
    """Whether a node has all that one node of the job is asked for."""
    return (
        _gpus(node, slurm.gpu_type) >= slurm.gpus
        and node.memory_mb >= (slurm.mem_mb or 0)
        and node.cpus >= (slurm.cpus_per_task or 1)
        and _features(slurm) <= node.features
    )


def _lack_anything(nodes: Sequence[ClusterNode], slurm: SlurmConfig, where: str) -> Check:
    hint = "ask for less, or choose another partition"
    return _AT.problem("slurm.nodes", _lacking(nodes, slurm, where), hint)


def _lacking(nodes: Sequence[ClusterNode], slurm: SlurmConfig, where: str) -> str:
    """What no node has; of several things, the first."""
    if not nodes:
        return f"{where} has no nodes"
    most = max(node.memory_mb for node in nodes)
    if most < (slurm.mem_mb or 0):
        return f"a node of {where} has at most {most:,} MB, slurm.mem is {slurm.mem_mb:,} MB"
    if (cpus := max(node.cpus for node in nodes)) < (slurm.cpus_per_task or 1):
        return f"a node of {where} has at most {cpus} cores, slurm.cpus_per_task is {slurm.cpus_per_task}"
    if missing := _features(slurm) - {feature for node in nodes for feature in node.features}:
        return f"no node of {where} has the feature {', '.join(sorted(missing))}"
    return f"no node of {where} has all together that slurm asks for"


def _gpus(node: ClusterNode, kind: str | None) -> int:
    return sum(node.gpus.values()) if kind is None else node.gpus.get(kind, 0)


def _features(slurm: SlurmConfig) -> frozenset[str]:
    plain = slurm.constraint and _PLAIN.fullmatch(slurm.constraint)
    return frozenset(re.split("[&,]", slurm.constraint or "")) if plain else frozenset()


def _preemption(cluster: Cluster, partitions: Iterable[Partition], want: Wants) -> Iterator[Check]:
    """Preempted runs resume; what matters is whether they are warned, and whether there are checkpoints."""
    names = [p.name for p in partitions if p.preempt_mode not in ("OFF", "")]
    if not names:
        return
    settings = " ".join(cluster.settings.get(name, "") for name in ("SlurmctldParameters", "PreemptParameters"))
    warned = any(word in settings for word in _WARNS)
    seen = f"jobs in {'/'.join(names)} can be preempted, {'with' if warned else 'without'} a warning"
    if not warned and want.config.command is None and want.config.train.checkpoint_every is None:
        yield _AT.warning(
            "slurm.preemption", seen, "set train.checkpoint_every: a preempted run begins again at step 0"
        )
    else:
        yield _AT.note("slurm.preemption", seen, "" if warned else "a preempted run resumes from its last checkpoint")


def _forecast(forecast: Forecast, want: Wants) -> Check:
    if forecast.refused:
        hint = f"change what `slurm:` asks for ({want.named}); `sbatch --test-only` says the same"
        return _AT.problem("slurm.submit", f"sbatch would refuse: {forecast.said}", hint)
    if forecast.unknown:
        return _AT.warning("slurm.submit", forecast.said, "try again")
    return _AT.ok("slurm.submit", forecast.said)


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word.lower(), {name.lower(): name for name in known}, 1, cutoff=0.5)
    return f'did you mean "{next(name for name in known if name.lower() == near[0])}"?' if near else ""
