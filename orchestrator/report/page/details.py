"""The folded details: what each condition trains, on which software and machines, each run and GPU. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from dscampaign.db.gpu_records import GpuDevice, GpuUse
from dscampaign.db.states import RunState
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.formatting import flat_fields, short_number, some
from dscampaign.orchestrator.reconcile.screening import ScreeningRule
from dscampaign.orchestrator.report.compare.conditions import Condition, key_of
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.report.measure.telemetry import GpuDetails
from dscampaign.orchestrator.spec.effects import COMPARES_ALIKE
from dscampaign.orchestrator.spec.run_names import SCREENS

from .elements import Section, Table, table_of
from .questions import MOST_ROWS

_MFU_TEXT: Final = (
    "MFU = tokens/s of a rank × FLOP a token / peak; FLOP a token = 6 × parameters + 12 × layers × width × length; the "
    "peak is that of dense bf16, for every precision."
)


def details(results: Results, gpus: GpuDetails, ds_configs: Mapping[str, str]) -> Iterator[Section]:
    """Yield the sections that a page folds; `ds_configs` has the DeepSpeed configuration by condition."""
    yield _screening(results)
    yield _runs(results)
    yield _each_gpu(gpus)
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
    if rule is None or not results.screening:
        return Section("Screening")
    full: dict[str, list[MeasuredRun]] = {}
    for run in results.runs:
        full.setdefault(key_of(run.params), []).append(run)
    rows = [_screened(run, full.get(key_of(run.params), [])) for run in results.screening]
    header = ("condition", "steps", "tokens/s", "step ms", "memory", "loss", "then", "because")
    text = f"Each point ran for a few steps, which count in no comparison; in full ran {rule.text}."
    return Section("What was screened?", text, tables=(_long(header, rows, "-rrrrr--"),), folded=True)


def _screened(run: MeasuredRun, full: Sequence[MeasuredRun]) -> tuple[str, ...]:
    timing, memory = run.timing, run.memory
    held = memory.reserved if memory.reserved is not None else memory.host
    loss = run.loss.held_out if run.loss.held_out is not None else run.loss.final
    out = next((each for each in full if each.state is RunState.SCREENED), None)
    ran = "ran in full" if any(each.tries for each in full) else str(full[0].state) if full else ""
    return (
        run.name.removesuffix(SCREENS),
        "" if run.step is None else f"{run.step:,}",
        short_number(timing.tokens_per_s) if timing else "",
        f"{1000 * timing.step_s:,.1f}" if timing else "",
        METRICS["mem_reserved_gb"].text(held),
        METRICS["held_out"].number(loss),
        *(("left out", out.reason) if out else (ran, "")),
    )


def _runs(results: Results) -> Section:
    """How complete and clean the figures of each run are."""
    header = (
        "run", "state", "tries", "steps expected", "received", "losses", "times", "memories", "gaps", "repeated",
        "not finite", "skipped", "allocator retries", "waited for data", "clocks held down",
    )  # fmt: skip
    rows = [_run(run) for run in results.runs if run.tries]
    return Section("Runs", tables=(_long(header, rows, "--" + "r" * 13, "runs.csv"),) if rows else (), folded=True)


def _run(run: MeasuredRun) -> tuple[str, ...]:
    quality = run.quality
    counts = (quality.gaps, quality.repeated, quality.non_finite, quality.skipped_steps, quality.alloc_retries)
    return (
        run.name,
        f"{run.state} early" if run.early else str(run.state),
        str(run.tries),
        f"{quality.expected:,}" if quality.expected else "",
        *(f"{number:,}" for number in (quality.received, quality.losses, quality.times, quality.memories)),
        *(f"{number:,}" if number else "" for number in counts),
        *(f"{share:.1%}" if share else "" for share in (quality.data_wait, run.gpus.slowed)),
    )


def _each_gpu(details: GpuDetails) -> Section:
    header = (
        "run", "node", "GPU", "utilisation", "power", "peak", "of limit", "peak over 1 s", "coolest", "hottest",
        "memory", "energy kJ",
    )  # fmt: skip
    rows = [_gpu(run, used, details) for run, used in details.uses]
    return Section("GPUs", tables=(_long(header, rows, "--rrrrrrrrrr"),) if rows else (), folded=True)


def _gpu(run: str, used: GpuUse, details: GpuDetails) -> tuple[str, ...]:
    limits = (one.power_limit_w for one in details.devices.get(run, ()) if (one.node, one.gpu) == (used.node, used.gpu))
    limit_w = next(limits, None)
    return (
        run,
        used.node,
        str(used.gpu),
        METRICS["gpu_util_pct"].text(used.util_pct),
        METRICS["gpu_power_w"].text(used.power_w),
        METRICS["gpu_power_peak_w"].text(used.power_peak_w),
        f"{used.power_peak_w / limit_w:.0%}" if used.power_peak_w and limit_w else "",
        METRICS["gpu_power_avg_peak_w"].text(used.power_avg_peak_w),
        METRICS["gpu_temperature_min_c"].text(used.temperature_min_c),
        METRICS["gpu_temperature_c"].text(used.temperature_max_c),
        METRICS["mem_device_gb"].text(used.mem_used_max_gb),
        METRICS["energy_j"].number(used.energy_j),
    )


_WORK: Final = {"matrix_parameters": "parameters", "layers": "layers", "attention_width": "width"}
"""Facts of a model that its work follows from, and those of which earlier versions counted it."""


def _mfu_inputs(results: Results) -> Section:
    header = (
        "condition", "device", "precision", "tokens/s of a rank", "parameters", "layers", "width", "length",
        "FLOP a token", "peak TFLOP/s", "MFU",
    )  # fmt: skip
    rows = list(_mfu_rows(results))
    tables = (_long(header, rows, "---rrrrrrrr"),) if rows else ()
    return Section("What MFU is calculated from", _MFU_TEXT, tables=tables, folded=True)


def _mfu_rows(results: Results) -> Iterator[tuple[str, ...]]:
    for condition in results.conditions:
        run = next((run for run in condition.runs if run.speed), condition.runs[0])
        peak, tokens = run.speed.get("peak_flops"), condition.value("tokens_per_s")
        if isinstance(peak, int | float) and condition.value("mfu") is not None:
            yield (
                condition.title,
                str(run.speed.get("device") or run.start.get("device") or ""),
                str(condition.field("precision") or ""),
                _whole(tokens / condition.ranks) if tokens is not None else "",
                *(_whole(run.start.get(name, run.start.get(older))) for name, older in _WORK.items()),
                _whole(condition.field("seq_len")),
                _whole(run.speed.get("flops_per_token")),
                f"{peak / 1e12:,.4g}",
                condition.text("mfu"),
            )


def _whole(value: Any) -> str:
    """All digits, so that the result can be calculated again."""
    return f"{value:,.0f}" if isinstance(value, int | float) else ""


def setup(results: Results) -> Section:
    """The fields in which conditions differ, a row a condition, and those that they have in common."""
    names = [condition.title for condition in results.conditions]
    each = [dict(_fields(condition)) for condition in results.conditions]
    columns = {field: [fields.get(field, "") for fields in each] for field in dict.fromkeys(chain(*each))}
    varying = {field: values for field, values in columns.items() if len(set(values)) > 1}
    common = [(field, values[0]) for field, values in columns.items() if field not in varying and values[0]]
    rows = list(zip(names, *varying.values(), strict=True)) if varying else []
    differ = _long(("condition", *varying), rows)
    alike = table_of(("in all conditions" if len(names) > 1 else "field", "value"), common)
    return Section("Set-up", tables=tuple(table for table in (differ, alike) if table.rows), folded=True)


def _long(header: tuple[str, ...], rows: Sequence[Any], right: str = "", file: str = "conditions.csv") -> Table:
    more = max(0, len(rows) - MOST_ROWS)
    return table_of(header, rows[:MOST_ROWS], right, main=len(header), more=more, file=file)


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
    """The campaign, its software, its machines, and of each run its ids in other tools and where its logs are."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for run in results.runs:
        if run.software:
            groups.setdefault(tuple(run.software.items()), []).append(run.name)
    facts = {**results.campaign.provenance, "executor": results.campaign.executor, "folder": results.campaign.dir}
    campaign = tuple((name, str(value)) for name, value in facts.items() if value)
    tables = [table_of(("campaign", "value"), campaign)]
    tables += [table_of((some(names, 4), "value"), facts) for facts, names in groups.items()]
    if machines := tuple(_machines(results, details)):
        header = ("node", "GPUs", "GPU", "GPU memory", "power limit", "host memory limit", "runs")
        tables.append(table_of(header, machines, "-r-rrr-"))
    tables += _processors(results)
    tools = sorted({tool for run in results.runs for tool in run.forwarded})
    places = list(_places(results, tools))
    tables.append(_long(("run", *tools, "logs of its newest attempt"), places, file="runs.csv"))
    return Section("Environment", tables=tuple(tables), folded=True)


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
        yield table_of(("nodes", "CPU", "cores used", "system", "kernel", "CPU load"), rows, "--r--r")


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
