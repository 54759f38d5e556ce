"""Verdicts on a spec's requests to a cluster, from Slurm's answers. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from dscampaign.orchestrator.errors import did_you_mean
from dscampaign.orchestrator.executors.base import SubmissionRefused
from dscampaign.orchestrator.executors.slurm_commands import OtherCluster
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig

from .check import At, Check
from .cluster import Cluster, Nodes
from .requirements import Requirements

_AT: Final = At("slurm")
_MIB_PER_GB: Final = 1e9 / 2**20
_NOT_AVAILABLE: Final = "node configuration is not available"


def slurm_checks(
    cluster: Cluster, requirements: Sequence[Requirements], forecasts: Sequence[str | Exception]
) -> Iterator[Check]:
    """Return verdicts on a cluster.

    `sbatch --test-only` checks a job's requests, but neither the partition's time limit and state nor the model.

    Args:
        cluster: its answers.
        requirements: the spec's requests to it; empty without a spec.
        forecasts: for each requirement when its job would start, or why not.
    """
    if cluster.trouble:
        hint = "is this a login node of a Slurm cluster? `executor: local` needs none"
        check = _AT.problem("slurm.controller", cluster.trouble, hint, away=True)
        yield check if requirements else _AT.note(check.id, check.seen, hint)
        return
    yield _AT.ok("slurm.controller", f"responding, Slurm {cluster.version}")
    yield _accounting(cluster)
    for required, forecast in zip(requirements, forecasts, strict=True):
        slurm = required.config.slurm
        if isinstance(forecast, OtherCluster):
            yield _AT.problem("slurm.submit", forecast.message, forecast.hint or "")
            continue
        names = (slurm.partition or next((n.partition for n in cluster.nodes if n.default), "")).split(",")
        nodes = [n for n in cluster.nodes if n.partition in names]
        yield from (_partition(name, cluster, slurm) for name in names if name)
        if nodes:
            yield _nodes(nodes, required)
        if all(any(n.partition == name for n in cluster.nodes) for name in names if name):
            yield _forecast(forecast, required, nodes)  # else sbatch would only say the same once more


def _accounting(cluster: Cluster) -> Check:
    if cluster.accounting == "kept":
        return _AT.ok("slurm.accounting", "sacct responds")
    if cluster.accounting == "none":
        seen = "no slurmdbd: Slurm forgets an ended job after MinJobAge"
        return _AT.note("slurm.accounting", seen, "keep a reconciler running: `campaign reconcile --watch`")
    return _AT.warning(
        "slurm.accounting", cluster.accounting, "ask the site's administrators: it records how jobs ended"
    )


def _partition(name: str, cluster: Cluster, slurm: SlurmConfig) -> Check:
    partitions = {nodes.partition: nodes for nodes in cluster.nodes}
    if name not in partitions:
        hint = did_you_mean(name, partitions, f"one of: {', '.join(partitions)}", cutoff=0.5)
        return _AT.problem("slurm.partition", f"no partition named {name}", hint)
    state, most_min = partitions[name].state, partitions[name].max_time_min
    if state != "up":
        seen = f"{name} is {state}: it starts no jobs"
        return _AT.problem("slurm.partition", seen, "wait, or choose another partition", away=True)
    if most_min is not None and slurm.time_min > most_min:
        seen = f"{name} allows {most_min:,} min, slurm.time is {slurm.time_min:,} min: jobs would wait forever"
        hint = f"write `time: {most_min}`: a run resumes in a new job"
        if slurm.qos:
            return _AT.warning("slurm.partition", seen, f"{hint}; or ask whether qos {slurm.qos} allows more")
        return _AT.problem("slurm.partition", seen, hint)
    return _AT.ok("slurm.partition", f"{name} is up")


def _nodes(nodes: Sequence[Nodes], required: Requirements) -> Check:
    most_gb = max(group.memory_mb for group in nodes) / _MIB_PER_GB
    in_service = sum(group.count for group in nodes if group.in_service)
    if most_gb < required.host_gb:
        takes = f"the model needs {required.host_gb:,.0f} GB of a node's memory ({required.named})"
        hint = "use more nodes or fewer ranks on each, or offload less"
        return _AT.problem("slurm.nodes", f"{takes}, nodes have {most_gb:,.0f} GB", hint)
    if in_service < required.config.slurm.nodes:
        seen = f"{required.config.slurm.nodes} requested, but only {in_service} in service"
        return _AT.warning("slurm.nodes", seen, "`sinfo -R` shows why; jobs wait until they come back")
    return _AT.ok("slurm.nodes", _described(nodes))


def _described(nodes: Sequence[Nodes]) -> str:
    counts: Counter[tuple[str, str, str]] = Counter()
    for group in nodes:
        limit = "" if group.max_nodes == "infinite" else f", at most {group.max_nodes} a job"
        counts[group.partition, group.has, limit] += group.count
    return "; ".join(f"{name}: {count(number, 'node')} ({has}){limit}" for (name, has, limit), number in counts.items())


def _forecast(forecast: str | Exception, required: Requirements, nodes: Sequence[Nodes]) -> Check:
    if isinstance(forecast, SubmissionRefused) and _NOT_AVAILABLE in str(forecast) and _may_come_back(nodes, required):
        seen = f"{forecast} while nodes are out of service"
        return _AT.warning("slurm.submit", seen, "`sinfo -R` shows why; jobs wait until they come back")
    if isinstance(forecast, SubmissionRefused):
        hint = f"change the `slurm` section ({required.named}); there is {_described(nodes) or 'no such partition'}"
        return _AT.problem("slurm.submit", f"sbatch would refuse: {forecast}", hint)
    if isinstance(forecast, Exception):
        return _AT.warning("slurm.submit", str(forecast), "try again")
    return _AT.ok("slurm.submit", forecast)


def _may_come_back(nodes: Sequence[Nodes], required: Requirements) -> bool:
    """Return whether nodes out of service may run the job: `--test-only` leaves them out, sbatch does not."""
    slurm, in_service = required.config.slurm, Counter[str]()
    for group in nodes:
        in_service[group.has] += group.count if group.in_service else 0
    away = [group for group in nodes if not group.in_service]
    needed = slurm.nodelist is not None or any(in_service[group.has] < slurm.nodes for group in away)
    return bool(away) and needed and sum(group.count for group in nodes) >= slurm.nodes
