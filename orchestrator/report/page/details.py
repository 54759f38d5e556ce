"""The folded details: what each condition trains, on which software and machines, each run and GPU. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from dscampaign.db.gpu_records import GpuDevice, GpuUse
from dscampaign.db.states import RunState
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import flat_fields, short_number, some
from dscampaign.orchestrator.reconcile.screening import ScreeningRule
from dscampaign.orchestrator.report.compare.conditions import Condition, key_of
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.spec.effects import COMPARES_ALIKE
from dscampaign.orchestrator.spec.run_names import SCREENS

from .elements import Section, table, table_of

T = TypeVar("T")
Columns = dict[str, Callable[[T], str]]

ALL: Final = 99
"""A table of details shows all its columns."""

_MFU_TEXT: Final = (
    "MFU = tokens/s of a rank × FLOP a token / peak; FLOP a token = 6 × parameters + 12 × layers × width × length; the "
    "peak is that of dense bf16, for every precision."
)


def details(results: Results, gpus: GpuDetails, ds_configs: Mapping[str, str]) -> Iterator[Section]:
    """Yield the sections that a page folds; `ds_configs` has the DeepSpeed configuration by condition."""
    yield _screening(results)
    begun = [run for run in results.runs if run.tries]
    yield Section("Runs", tables=table_of(_RUNS, begun, main=ALL, file="runs.csv"), folded=True)
    yield Section("GPUs", tables=table_of(_gpus(gpus), gpus.uses, main=ALL, file="report.json"), folded=True)
    yield setup(results)
    yield _mfu_inputs(results)
    chosen = [one.answer.chosen or one.workload.baseline for one in results.workloads]
    codes = tuple((one.title, ds_configs[one.name]) for one in chosen if one.name in ds_configs)
    yield Section("DeepSpeed configuration", code=codes, folded=True)
    spec = results.campaign.spec.strip()
    yield Section("Spec", code=((f"{results.campaign.name}.yaml", spec),) if spec else (), folded=True)
    yield environment(results, gpus)


def _screening(results: Results) -> Section:
    rule = ScreeningRule.of(results.campaign.provenance)
    full: dict[str, list[MeasuredRun]] = {}
    for run in results.runs:
        full.setdefault(key_of(run.params), []).append(run)
    columns: Columns[MeasuredRun] = {
        "condition": lambda run: run.name.removesuffix(SCREENS),
        "steps": lambda run: "" if run.step is None else f"{run.step:,}",
        "tokens/s": lambda run: short_number(run.timing.tokens_per_s) if run.timing else "",
        "step (ms)": lambda run: METRICS["step_s"].number(run.timing.step_s) if run.timing else "",
        "memory": lambda run: METRICS["mem_reserved_gb"].text(_first(run.memory.reserved, run.memory.host)),
        "loss": lambda run: METRICS["held_out"].number(_first(run.loss.held_out, run.loss.final)),
        "then": lambda run: _then(full.get(key_of(run.params), [])),
        "because": lambda run: next((one.reason for one in full.get(key_of(run.params), []) if _is_out(one)), ""),
    }
    text = f"Each point ran for a few steps, which count in no comparison; in full ran {rule.text if rule else ''}."
    tables = table_of(columns, results.screening, main=ALL) if rule else ()
    return Section("What was screened?", text, tables=tables, folded=True)


def _first(one: float | None, other: float | None) -> float | None:
    return other if one is None else one


def _is_out(run: MeasuredRun) -> bool:
    return run.state is RunState.SCREENED


def _then(full: Sequence[MeasuredRun]) -> str:
    if any(map(_is_out, full)):
        return "left out"
    return "ran in full" if any(run.tries for run in full) else str(full[0].state) if full else ""


def _many(number: int | None) -> str:
    return f"{number:,}" if number else ""


_RUNS: Final[Columns[MeasuredRun]] = {
    "run": lambda run: run.name,
    "state": lambda run: f"{run.state} early" if run.early else str(run.state),
    "tries": lambda run: str(run.tries),
    "steps expected": lambda run: _many(run.quality.expected),
    "received": lambda run: f"{run.quality.received:,}",
    "losses": lambda run: f"{run.quality.losses:,}",
    "times": lambda run: f"{run.quality.times:,}",
    "memories": lambda run: f"{run.quality.memories:,}",
    "gaps": lambda run: _many(run.quality.gaps),
    "repeated": lambda run: _many(run.quality.repeated),
    "not finite": lambda run: _many(run.quality.non_finite),
    "skipped": lambda run: _many(run.quality.skipped_steps),
    "allocator retries": lambda run: _many(run.quality.alloc_retries),
    "waited for data": lambda run: f"{run.quality.data_wait:.1%}" if run.quality.data_wait else "",
    "clocks held down": lambda run: f"{run.gpus.slowed:.1%}" if run.gpus.slowed else "",
}
"""How complete and clean the figures of a run are."""


def _gpus(details: GpuDetails) -> Columns[tuple[str, GpuUse]]:
    limits = {(run, one.node, one.gpu): one.power_limit_w for run, every in details.devices.items() for one in every}

    def of_limit(one: tuple[str, GpuUse]) -> str:
        run, used = one
        limit_w = limits.get((run, used.node, used.gpu))
        return f"{used.power_peak_w / limit_w:.0%}" if used.power_peak_w and limit_w else ""

    return {
        "run": lambda one: one[0],
        "node": lambda one: one[1].node,
        "GPU": lambda one: str(one[1].gpu),
        "utilisation": lambda one: METRICS["gpu_util_pct"].text(one[1].util_pct),
        "power": lambda one: METRICS["gpu_power_w"].text(one[1].power_w),
        "highest sample": lambda one: METRICS["gpu_power_peak_w"].text(one[1].power_peak_w),
        "of limit": of_limit,
        "peak over 1 s": lambda one: METRICS["gpu_power_avg_peak_w"].text(one[1].power_avg_peak_w),
        "coolest": lambda one: METRICS["gpu_temperature_min_c"].text(one[1].temperature_min_c),
        "hottest": lambda one: METRICS["gpu_temperature_c"].text(one[1].temperature_max_c),
        "memory": lambda one: METRICS["mem_device_gb"].text(one[1].mem_used_max_gb),
        "energy": lambda one: METRICS["energy_j"].text(one[1].energy_j),
    }


def _mfu_inputs(results: Results) -> Section:
    rows = []
    for condition in results.conditions:
        run = next((run for run in condition.runs if run.speed), condition.runs[0])
        if isinstance(run.speed.get("peak_flops"), int | float) and condition.value("mfu") is not None:
            rows.append((condition, run))
    columns: Columns[tuple[Condition, MeasuredRun]] = {
        "condition": lambda one: one[0].title,
        "device": lambda one: str(one[1].speed.get("device") or one[1].start.get("device") or ""),
        "precision": lambda one: str(one[0].field("precision") or ""),
        "tokens/s of a rank": lambda one: _whole((one[0].value("tokens_per_s") or 0.0) / one[0].ranks),
        "parameters": lambda one: _whole(one[1].start.get("matrix_parameters", one[1].start.get("parameters"))),
        "layers": lambda one: _whole(one[1].start.get("layers")),
        "width": lambda one: _whole(one[1].start.get("attention_width", one[1].start.get("width"))),
        "length": lambda one: _whole(one[0].field("seq_len")),
        "FLOP a token": lambda one: _whole(one[1].speed.get("flops_per_token")),
        "peak TFLOP/s": lambda one: f"{one[1].speed['peak_flops'] / 1e12:,.4g}",
        "MFU": lambda one: one[0].text("mfu"),
    }
    return Section("What MFU is calculated from", _MFU_TEXT, tables=table_of(columns, rows, main=ALL), folded=True)


def _whole(value: Any) -> str:
    """All digits, so that the result can be calculated again."""
    return f"{value:,.0f}" if isinstance(value, int | float) else ""


def setup(results: Results) -> Section:
    """The fields in which conditions differ, a row a condition, and those that they have in common."""
    each = [(condition.title, dict(_fields(condition))) for condition in results.conditions]
    columns = {
        field: {fields.get(field, "") for _, fields in each} for field in dict.fromkeys(chain(*(f for _, f in each)))
    }
    varying: Columns[tuple[str, dict[str, str]]] = {"condition": lambda one: one[0]}
    for name, values in columns.items():
        if len(values) > 1:
            varying[name] = _field(name)
    common = [(field, *values) for field, values in columns.items() if len(values) == 1 and values != {""}]
    differ = table_of(varying, each, main=len(varying), file="conditions.csv") if len(varying) > 1 else ()
    alike = table(("in all conditions" if len(each) > 1 else "field", "value"), common)
    return Section("Set-up", tables=(*differ, alike), folded=True)


def _field(name: str) -> Callable[[tuple[str, dict[str, str]]], str]:
    return lambda one: one[1].get(name, "")


def _fields(condition: Condition) -> Iterator[tuple[str, str]]:
    """All fields of a condition's configuration by name, and what follows from them.

    Which of the trainer's fields a user's script heeds is unknown: of it, its command and the matrix count.
    """
    run = condition.runs[0]
    command = run.config.get("command")
    own = {name: value for name, value in condition.params.items() if name != "label"}
    sections = {"": {"command": command, **own} if command else run.train}
    where = () if run.config.get("executor") == "local" else ("slurm",)
    sections |= {f"{name}.": run.config.get(name) or {} for name in ("deepspeed", "env", *where)}
    for prefix, fields in sections.items():
        for name, value in flat_fields(fields, prefix):
            if name.partition(".")[0] not in COMPARES_ALIKE and name not in _SCHEDULING:
                yield name, _text(value)
    batch, steps = condition.field("global_batch"), run.target_step
    yield "parameters", short_number(run.parameters)
    yield "ranks", str(run.world_size)
    yield "tokens a step", _text(run.tokens_per_step)
    yield "samples", f"{batch * steps:,}" if batch and steps else ""


_SCHEDULING: Final = frozenset(("slurm.time", "slurm.array_parallelism", "slurm.signal_delay_s", "slurm.setup"))


def _text(value: object) -> str:
    """A field's value; empty if it is not set."""
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return value if isinstance(value, str) else json.dumps(value, default=str)


def environment(results: Results, details: GpuDetails) -> Section:
    """The campaign, its software, its nodes, and of each run its ids in other tools and where its logs are."""
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    tables = [table(("campaign", "value"), [(name, str(value)) for name, value in facts.items() if value])]
    software = alike((run for run in results.runs if run.software), lambda run: tuple(run.software.items()))
    tables += [table((some([run.name for run in same], 4), "value"), same[0].software.items()) for same in software]
    tables += table_of(_NODES, list(_nodes(results, details)), main=ALL)
    paths = CampaignPaths(Path(results.campaign.dir), results.campaign.name)
    places: Columns[MeasuredRun] = {"run": lambda run: run.name}
    for tool in sorted({tool for run in results.runs for tool in run.forwarded}):
        places[tool] = _id_in(tool)
    places["logs of its newest attempt"] = lambda run: str(paths.run(run.name).attempt(run.generation).logs)
    begun = [run for run in results.runs if run.generation]
    return Section("Environment", tables=(*tables, *table_of(places, begun, main=ALL, file="runs.csv")), folded=True)


def _id_in(tool: str) -> Callable[[MeasuredRun], str]:
    return lambda run: run.forwarded.get(tool, "")


@dataclass
class _Node:
    name: str
    runs: list[str] = field(default_factory=list)
    limits_gb: set[float] = field(default_factory=set)
    devices: dict[str, GpuDevice] = field(default_factory=dict)
    machines: list[Mapping[str, Any]] = field(default_factory=list)

    def each(self, name: str) -> str:
        """The values of a fact about the machine: a node may have had another system later."""
        return ", ".join(dict.fromkeys(str(machine[name]) for machine in self.machines if machine.get(name)))

    def gpus(self, of: Callable[[GpuDevice], str]) -> str:
        """The values of a fact about its GPUs."""
        return ", ".join(dict.fromkeys(map(of, self.devices.values())))


_NODES: Final[Columns[_Node]] = {
    "node": lambda node: node.name,
    "GPUs": lambda node: _many(len(node.devices)),
    "GPU": lambda node: node.gpus(lambda gpu: gpu.name),
    "GPU memory": lambda node: node.gpus(lambda gpu: METRICS["mem_usable_gb"].text(gpu.mem_total_gb)),
    "power limit": lambda node: node.gpus(lambda gpu: METRICS["gpu_power_w"].text(gpu.power_limit_w)),
    # Jobs on one node may have had different limits.
    "host memory limit": lambda node: ", ".join(map(METRICS["mem_host_gb"].text, sorted(node.limits_gb))),
    "CPU": lambda node: node.each("cpu"),
    "cores used": lambda node: " of ".join(filter(None, (node.each("usable"), node.each("cores")))),
    "system": lambda node: node.each("system"),
    "kernel": lambda node: node.each("kernel"),
    "CPU load": lambda node: _range([busy for one in node.machines if isinstance(busy := one.get("busy_pct"), int)]),
    "runs": lambda node: some(node.runs, 4),
}


def _nodes(results: Results, details: GpuDetails) -> Iterable[_Node]:
    found: dict[str, _Node] = {}
    for run in results.runs:
        devices = details.devices.get(run.name, ())
        for name in dict.fromkeys((*run.hosts, *run.machines, *(device.node for device in devices))):
            node = found.setdefault(name, _Node(name))
            node.runs.append(run.name)
            node.limits_gb |= {run.host_limits_gb[name]} if name in run.host_limits_gb else set()
            node.machines += [run.machines[name]] if name in run.machines else []
            node.devices |= {device.uuid or str(device.gpu): device for device in devices if device.node == name}
    return found.values()


def _range(percents: Sequence[int]) -> str:
    ends = (min(percents), max(percents)) if percents else ()
    return " to ".join(dict.fromkeys(map(str, ends))) + (" %" if ends else "")
