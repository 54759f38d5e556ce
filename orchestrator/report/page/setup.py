"""What was run: what each condition trains, on which software and machines, what failed, where the logs are. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dscampaign.db.gpu_records import GpuDevice
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.rank_groups import ranks_per_sample
from dscampaign.orchestrator.campaign.documents import flat_fields
from dscampaign.orchestrator.failures.groups import alike, gist
from dscampaign.orchestrator.formatting import short_number, some
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.spec.effects import COMPARES_ALIKE

from .elements import Section, Table


def setup(results: Results) -> Section:
    """The fields in which conditions differ, a row a condition, and those that they have in common."""
    names = [condition.name for condition in results.conditions]
    each = [dict(_fields(condition)) for condition in results.conditions]
    columns = {field: [fields.get(field, "") for fields in each] for field in dict.fromkeys(chain(*each))}
    varying = {field: values for field, values in columns.items() if len(set(values)) > 1}
    common = tuple((field, values[0]) for field, values in columns.items() if _is_shown(field, values))
    right = "-" + "".join("r" if field in _COLUMNS and _COLUMNS[field].number else "-" for field in varying)
    rows = tuple(zip(names, *varying.values(), strict=True)) if varying else ()
    differ = Table(("condition", *varying), rows, right)
    alike = Table(("in all conditions" if len(names) > 1 else "field", "value"), common)
    return Section("Set-up", tables=tuple(table for table in (differ, alike) if table.rows))


def _is_shown(field: str, values: Sequence[str]) -> bool:
    """Whether all conditions have the same value, which is worth a line: not what only matters where they differ."""
    return len(set(values)) == 1 and values[0] != "" and field not in _MINOR and not field.startswith("env.")


def _fields(condition: Condition) -> Iterator[tuple[str, str]]:
    """All fields of a condition's configuration by name, the most important first.

    Of the user's own script nobody knows which of the trainer's fields it heeds: its command, and what the matrix sets.
    """
    if condition.runs[0].config.get("command"):
        yield from ((name, column.cell(condition)) for name, column in _COLUMNS.items() if column.of_scripts)
        yield from ((name, _text(value)) for name, value in condition.params.items() if name != "label")
        yield from _sections(condition, "deepspeed", "env")
    else:
        yield from ((name, column.cell(condition)) for name, column in _COLUMNS.items())
        yield from _sections(condition, "train", "deepspeed", "env")
    if condition.runs[0].config.get("executor") != "local":
        yield from _sections(condition, "slurm")


def _sections(condition: Condition, *sections: str) -> Iterator[tuple[str, str]]:
    for section in sections:
        fields = condition.runs[0].config.get(section) or {}
        for name, value in flat_fields(fields, "" if section == "train" else f"{section}."):
            if name.partition(".")[0] not in _TOLD and name not in _TOLD:
                yield name, _text(value)


def _ranks(condition: Condition) -> str:
    run = condition.runs[0]
    nodes = 1 if run.config.get("executor") == "local" else run.slurm.get("nodes") or 1
    return f"{nodes} × {run.world_size // nodes}"


def _batch(condition: Condition) -> str:
    run, samples = condition.runs[0], condition.field("global_batch")
    groups = {name: condition.field(name) for name in ("sequence_parallel", "tensor_parallel")}
    shares = run.world_size // ranks_per_sample(groups)
    parts = f" = {run.micro_batch} × {run.accumulation} × {shares}" if run.accumulation else ""
    return f"{samples}{parts}" if samples else ""


def _samples(condition: Condition) -> str:
    batch, steps = condition.field("global_batch"), condition.runs[0].target_step
    return f"{batch * steps:,}" if batch and steps else ""


def _stage(condition: Condition) -> str:
    if condition.field("engine") in ("ddp", "fsdp2"):
        return "without"
    return _text(condition.field("zero_stage"))


def _compiled(condition: Condition) -> str:
    if condition.field("compile") is None:
        return ""
    return "DeepCompile" if condition.field("deepcompile") else "torch.compile" if condition.field("compile") else "no"


def _named(value: object) -> str:
    """A model or a data set: its name or path, or the fields that make it."""
    return ", ".join(_words(value)) if isinstance(value, Mapping) else _text(value)


def _words(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if value is not None:
            yield _text(value) if name in ("path", "model_type") else f"{name} {_text(value)}"


@dataclass(frozen=True)
class _Column:
    """What a column says of a condition.

    Attributes:
        tells: fields of the configuration that need no column of their own beside it.
        of_scripts: whether it is known of the user's own script, too.
    """

    cell: Callable[[Condition], str]
    tells: tuple[str, ...] = ()
    number: bool = False
    of_scripts: bool = False


def _field(name: str, *, number: bool = False) -> _Column:
    return _Column(lambda condition: _text(condition.field(name)), (name,), number)


_COLUMNS: Final = {
    "command": _Column(lambda condition: _text(condition.runs[0].config.get("command")), of_scripts=True),
    "model": _Column(lambda condition: _named(condition.field("model")), ("model",)),
    "parameters": _Column(lambda condition: short_number(condition.runs[0].parameters), number=True, of_scripts=True),
    "data": _Column(lambda condition: _named(condition.field("dataset")), ("dataset",)),
    "nodes × ranks": _Column(_ranks, ("slurm.nodes", "slurm.gpus_per_node"), number=True, of_scripts=True),
    "batch": _Column(_batch, ("global_batch", "micro_batch"), number=True),
    "tokens a step": _Column(lambda condition: _text(condition.runs[0].tokens_per_step), number=True, of_scripts=True),
    "length": _field("seq_len", number=True),
    "steps": _Column(lambda condition: _text(condition.runs[0].target_step), ("steps",), number=True, of_scripts=True),
    "epochs": _field("epochs", number=True),
    "samples": _Column(_samples, number=True),
    "precision": _field("precision"),
    "ZeRO": _Column(_stage, ("engine", "zero_stage")),
    "offload": _field("offload"),
    "activation checkpointing": _field("activation_checkpointing"),
    "compile": _Column(_compiled, ("compile", "deepcompile")),
    "lr": _field("lr", number=True),
}
"""By heading, the most important first."""

_TOLD: Final = COMPARES_ALIKE | {field for column in _COLUMNS.values() for field in column.tells}
"""Fields that the columns above tell, and those that change nothing of the training."""

_MINOR: Final = frozenset(("slurm.time", "slurm.array_parallelism", "slurm.signal_delay_s", "slurm.setup"))
"""How jobs are scheduled."""


def _text(value: object) -> str:
    """A field's value; empty if it is not set."""
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


_SINGLE: Final = 3
"""More failures of one cause than this share a row."""


def failures(results: Results) -> Section:
    """Every attempt that failed, why, and what was done about it; of many of one cause the first, with their number."""
    found = [one for run in results.runs for one in run.failures]
    groups = alike(
        found, lambda one: (one.generation, one.kind, gist(one.reason.replace(one.run, "#")), gist(one.then))
    )
    shown = [[one] for same in groups if len(same) <= _SINGLE for one in same]
    shown += [same for same in groups if len(same) > _SINGLE]
    rows = tuple(
        (some([one.run for one in same], 2), str(same[0].generation), same[0].kind, same[0].reason, same[0].then)
        for same in shown
    )
    header = ("run", "attempt", "failure class", "reason", "what was done")
    return Section("What failed", (), (Table(header, rows, "-r---"),) if rows else ())


def environment(results: Results, details: GpuDetails) -> Section:
    """The campaign, its software, its machines, and of each run its ids in other tools and where its logs are."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in results.runs:
        if run.software:
            groups.setdefault(tuple(run.software.items()), []).append(run.name)
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    campaign = tuple((name, str(value)) for name, value in facts.items() if value)
    tables = [Table(("campaign", "value"), campaign)]
    tables += [Table((some(names, 4), "value"), facts) for facts, names in groups.items()]
    if machines := tuple(_machines(results, details)):
        header = ("node", "GPUs", "GPU", "GPU memory", "power limit", "host memory limit", "runs")
        tables.append(Table(header, machines, "-r-rrr-"))
    tables += _processors(results)
    tools = sorted({tool for run in results.runs for tool in run.forwarded})
    tables += [Table(("run", *tools, "logs of its newest attempt"), tuple(_places(results, tools)))]
    return Section("Environment", (), tuple(tables))


def _machines(results: Results, details: GpuDetails) -> Iterator[tuple[str, ...]]:
    runs: dict[str, list[str]] = defaultdict(list)
    limits: dict[str, set[float]] = defaultdict(set)
    gpus: dict[str, dict[tuple[str, str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in results.runs:
        devices = details.devices.get(run.name, ())
        for node in dict.fromkeys((*run.hosts, *(device.node for device in devices))):
            runs[node].append(run.name)
        for node, limit_gb in run.host_limits_gb.items():
            limits[node].add(limit_gb)
        for device in devices:
            gpus[device.node][_kind(device)].add(device.uuid or str(device.gpu))
    for node, names in runs.items():
        # Jobs on one node may have had different limits.
        limit = ", ".join(dict.fromkeys(map(METRICS["mem_host_gb"].text, sorted(limits[node]))))
        for kind, found in (gpus.get(node) or {("", "", ""): set[str]()}).items():
            yield node, str(len(found) or ""), *kind, limit, some(names, 4)


def _processors(results: Results) -> Iterator[Table]:
    nodes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    loads: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for run in results.runs:
        for node, machine in run.machines.items():
            cores, usable = (machine.get(name) for name in ("cores", "usable"))
            of = f"{usable} of {cores}" if cores and usable else ""
            cpu, *system = (str(machine.get(name) or "") for name in ("cpu", "system", "kernel"))
            kind = (cpu, of, *system)
            nodes[kind].append(node)
            loads[kind] += [busy] if isinstance(busy := machine.get("busy_pct"), int) else []
    rows = [(some(list(dict.fromkeys(found)), 4), *kind, _range(loads[kind])) for kind, found in nodes.items()]
    if rows:
        yield Table(("nodes", "CPU", "cores used", "system", "kernel", "CPU load"), tuple(rows), "--r--r")


def _range(percents: Sequence[int]) -> str:
    ends = (min(percents), max(percents)) if percents else ()
    return " to ".join(dict.fromkeys(map(str, ends))) + (" %" if ends else "")


def _kind(device: GpuDevice) -> tuple[str, str, str]:
    limit = "" if device.power_limit_w is None else f"{device.power_limit_w:,.0f} W"
    return device.name, METRICS["mem_usable_gb"].text(device.mem_total_gb), limit


def _places(results: Results, tools: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Of each run that has begun, its ids in other tools, and where its logs are."""
    paths = CampaignPaths(Path(results.campaign.dir), results.campaign.name)
    for run in results.runs:
        if run.generation:
            logs = paths.run(run.name).attempt(run.generation).logs
            yield run.name, *(run.forwarded.get(tool, "") for tool in tools), str(logs)
