"""What the runs ran on, what failed, and where their logs are. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ....jobs.layout import CampaignPaths
from ..compare.results import Results
from ..compare.wording import gigabytes, listed
from ..measure.failures import Background
from .elements import Section, Table

_FAILED_HEADER: Final = ("run", "attempt", "failure class", "reason", "what was done")
_MACHINES_HEADER: Final = ("node", "GPUs", "GPU", "GPU memory", "power limit", "host memory limit", "runs")


def failures(background: Background) -> Section:
    """Every attempt that failed, why, and what was done about it."""
    rows = tuple((one.run, str(one.generation), one.kind, one.reason, one.then) for one in background.failures)
    return Section("What failed", (), (Table(_FAILED_HEADER, rows, "-r---"),) if rows else ())


def environment(results: Results, background: Background) -> Section:
    """The campaign, its software, its machines, and of each run its ids in other tools and where its logs are."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in results.runs:
        if run.software:
            groups.setdefault(tuple(run.software.items()), []).append(run.name)
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    campaign = tuple((name, str(value)) for name, value in facts.items() if value)
    tables = [Table(("campaign", "value"), campaign)]
    tables += [Table((listed(names, 4), "value"), facts) for facts, names in groups.items()]
    if machines := tuple(_machines(results, background)):
        tables.append(Table(_MACHINES_HEADER, machines, "-r-rrr-"))
    tools = sorted({tool for run in results.runs for tool in run.forwarded})
    tables += [Table(("run", *tools, "logs of its newest attempt"), tuple(_places(results, tools)))]
    return Section("Environment", (), tuple(tables))


def _machines(results: Results, background: Background) -> Iterator[tuple[str, ...]]:
    """The nodes of the newest attempts, with their GPUs as far as any of these used them."""
    runs: dict[str, list[str]] = defaultdict(list)
    limits: dict[str, set[float]] = defaultdict(set)
    gpus: dict[str, dict[tuple[str, str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in results.runs:
        if behind := background.runs.get(run.name):
            for node in dict.fromkeys((*behind.hosts, *(device.node for device in behind.devices))):
                runs[node].append(run.name)
            for node, limit_gb in behind.host_limits_gb.items():
                limits[node].add(limit_gb)
            for device in behind.devices:
                limit = "" if device.power_limit_w is None else f"{device.power_limit_w:,.0f} W"
                kind = (device.name, gigabytes(device.mem_total_gb), limit)
                gpus[device.node][kind].add(device.uuid or str(device.gpu))
    for node, names in runs.items():
        for kind, found in (gpus.get(node) or {("", "", ""): set[str]()}).items():
            yield node, str(len(found) or ""), *kind, _limits(limits[node]), listed(names, 4)


def _limits(found: set[float]) -> str:
    """Jobs on one node may have had different ones."""
    return ", ".join(dict.fromkeys(map(gigabytes, sorted(found))))


def _places(results: Results, tools: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Of each run that has begun, its ids in other tools, and where its logs are."""
    paths = CampaignPaths(Path(results.campaign.dir), results.campaign.name)
    for run in results.runs:
        if run.generation:
            logs = paths.run(run.name).attempt(run.generation).logs
            yield run.name, *(run.forwarded.get(tool, "") for tool in tools), str(logs)
