"""The plan: a row for like repeats of a run with their batch arithmetic, then a line that sums it up."""

from __future__ import annotations

import json
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from dscampaign.db.states import CANCELLING, RunState
from dscampaign.jobs.shared import ds_config
from dscampaign.jobs.shared.placeholders import OF_A_RANK, filled_words, without_escapes
from dscampaign.orchestrator.campaign.gpu_hours import GpuHours
from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign
from dscampaign.orchestrator.campaign.status import TROUBLED
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.formatting import clean, count, duration, near_time, rough, short_number, some
from dscampaign.orchestrator.memory.config_changes import changed
from dscampaign.orchestrator.memory.prediction import HEADROOM
from dscampaign.orchestrator.memory.zero_memory import Shortage
from dscampaign.orchestrator.reconcile.forecast import Basis
from dscampaign.orchestrator.spec.batch_size import sharers
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.slurm_syntax import MINUTES_SECONDS

from .text import Cell, Page, Style, changed_line, changed_name, table

_STYLES: Final = {Sign.CREATE: Style.GREEN, Sign.RESUBMIT: Style.YELLOW, Sign.KEEP: Style.DIM, Sign.CANCEL: Style.RED}
_LEGEND: Final = "+ create  ~ resubmit  = keep  - cancel"
_HEADER: Final = ("", "run", "params", "batch", "states", "memory", "machine", "time", "steps", "why")
_RIGHT: Final = "--r-rr--rw"
_LIMIT: Final = _HEADER.index("time")
_ASKED: Final = ("partition", "account", "qos")
_DROPPED: Final = ("states", "time", "params", "steps", "memory", "machine")
"""Columns that a narrow terminal does without, the least important first."""

_BASES: Final = {
    Basis.REPEATS: "their repeats",
    Basis.EARLIER: "earlier campaigns",
    Basis.NEAREST: "the nearest conditions",
    None: "their time limit",
}

_UNKNOWN: Final = Cell("unknown", Style.DIM)

ROWS_AT_MOST: Final = 60
"""Of a plan with more runs, only `SHOWN_OF_MANY` are shown, those first that do not simply start or continue."""
SHOWN_OF_MANY: Final = 20


def plan_page(plan: Plan, page: Page, *, everything: bool = False) -> str:
    """The plan with its summary.

    Args:
        everything: a row for every run, however many there are.
    """
    most = None if everything or len(plan.runs) <= ROWS_AT_MOST else SHOWN_OF_MANY
    shown = sorted(plan.runs, key=lambda item: not _is_special(item))[:most] if most else plan.runs
    hidden = len(plan.runs) - len(shown)
    more = f"… and {count(hidden, 'more run')}: `{typed('plan', SPEC, '--all')}`"
    sections = [
        [page.paint(_LEGEND, Style.DIM)],
        [*_table(shown, page), *([page.paint(more, Style.DIM)] if hidden else [])],
        _command(plan),
        _differing(plan, page),
        [changed_line(item.name, " ".join(item.changes)) for item in plan.runs if item.changes],
        _shortages(plan, page),
        _ended_badly(plan),
        [clean(line) for line in (*plan.notes, *(f"note: {remark}" for remark in plan.remarks))],
        [summary(plan, page)],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _table(items: Iterable[PlannedRun], page: Page) -> list[str]:
    """Where runs are charged and queued has columns only if it differs."""
    items = list(items)
    extra = [name for name in _ASKED if len({getattr(i.run.config.slurm, name) for i in items if i.run}) > 1]
    header = [*_HEADER[:_LIMIT], *extra, *_HEADER[_LIMIT:]]
    return table(page, header, _rows(items, extra), f"{_RIGHT[:_LIMIT]}{'-' * len(extra)}{_RIGHT[_LIMIT:]}", _DROPPED)


def _is_special(item: PlannedRun) -> bool:
    return bool(item.changes or item.needs.shortage or item.differing) or item.sign in (Sign.RESUBMIT, Sign.CANCEL)


def summary(plan: Plan, page: Page) -> str:
    """`Plan: 24 to submit, 3 kept, 0 to cancel · 6 sbatch arrays · at most 1,536 GPU-hours`, or how many are likely."""
    start = plan.count(Sign.CREATE, Sign.RESUBMIT)
    parts = [f"{start:,} to submit, {plan.count(Sign.KEEP):,} kept, {plan.count(Sign.CANCEL):,} to cancel"]
    if plan.hours is None:
        most = max((run.config.local.parallel for run in plan.starting), default=1)
        likely = [item.likely.seconds for item in plan.runs if item.starts and item.likely]
        parts += [f"on this machine, {most} at a time"] if start else []
        parts += (
            [f"likely {duration(sum(likely) / min(most, start))}{_basis(plan)}"] if len(likely) == start > 0 else []
        )
    elif start:
        jobs = sum(map(len, plan.jobs))
        parts += [count(jobs, "job")] if jobs < start else []
        parts += [count(plan.arrays, "sbatch array"), hours_text(plan.hours, _basis(plan))]
    if plan.first_start_s and start:
        parts += [f"Slurm expects to start at {near_time(plan.first_start_s, time.time())}"]
    return f"{page.paint('Plan:', Style.BOLD)} {' · '.join(parts)}"


def hours_text(hours: GpuHours, basis: str = "") -> str:
    """`at most 1,536 GPU-hours`, `likely 31 GPU-hours (by their repeats), at most 128`."""
    most = f"at most {rough(hours.most)}"
    return f"{most} GPU-hours" if hours.likely is None else f"likely {rough(hours.likely)} GPU-hours{basis}, {most}"


def _basis(plan: Plan) -> str:
    """` (by their repeats)`, ` (20 runs by earlier campaigns, 4 by their time limit)`."""
    counts = Counter(item.likely and item.likely.basis for item in plan.runs if item.starts)
    shown = (f"{count(number, 'run')} by {_BASES[basis]}" for basis, number in counts.most_common())
    return f" ({', '.join(shown) if len(counts) > 1 else ''.join(f'by {_BASES[basis]}' for basis in counts)})"


def _command(plan: Plan) -> list[str]:
    """The command of the first run, filled in as for its next attempt, if it is a script of your own."""
    items = sorted((item for item in plan.runs if item.run), key=lambda item: not item.starts)
    item = next((item for item in items if item.run and item.run.config.command), None)
    if item is None or item.run is None:
        return []
    sizes = {"micro_batch": item.micro_batch, "accumulation": item.accumulation, "resume_from": ""}
    words = [without_escapes(word) for word in filled_words(item.run.config.command or (), sizes)]
    if (added := f"--local_rank={{{OF_A_RANK}}}") in words:  # as a launcher adds it
        words = [item.run.config.launcher or "deepspeed", *(word for word in words if word != added)]
    return [f"{item.name} runs `{clean(shlex.join(words))}`"]


def _differing(plan: Plan, page: Page) -> list[str]:
    """The settings that the spec changes, once for all runs with the same changes."""
    names: dict[tuple[Sign, tuple[str, ...]], list[str]] = {}
    for item in plan.runs:
        if item.differing:
            names.setdefault((item.sign, item.differing), []).append(item.name)
    later = {Sign.KEEP: ", from the next attempt"}
    return [
        f"{page.paint(sign, _STYLES[sign])} {_and_more(runs)}{later.get(sign, '')}: {clean(', '.join(differing))}"
        for (sign, differing), runs in names.items()
    ]


def _shortages(plan: Plan, page: Page) -> list[str]:
    """Runs whose model cannot fit, grouped by need; nothing is refused, as the arithmetic may err."""
    names: dict[Shortage, list[str]] = {}
    for item in plan.runs:
        if item.starts and item.needs.shortage:
            names.setdefault(item.needs.shortage, []).append(item.name)
    warning = page.paint("warning:", Style.YELLOW)
    return [f"{warning} {_and_more(runs)}: {s.message}\n  hint: {s.hint}" for s, runs in names.items()]


def _and_more(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'more run')}"


def _ended_badly(plan: Plan) -> list[str]:
    kept = [item for item in plan.runs if item.sign is Sign.KEEP and item.run]
    lines = []
    for kind, states in (("failed or held", TROUBLED), ("cancelled", (RunState.CANCELLED, CANCELLING))):
        if names := [item.name for item in kept if item.why in states]:
            chosen = names[:1] if kind == "cancelled" else []
            lines += [f"{kind}, not submitted again: {some(names, 3)} (`{typed('retry', plan.campaign, *chosen)}`)"]
    return lines


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as one document for `--json`."""
    return {
        "campaign": plan.campaign,
        "executor": plan.executor,
        "to_submit": plan.count(Sign.CREATE, Sign.RESUBMIT),
        "kept": plan.count(Sign.KEEP),
        "to_cancel": plan.count(Sign.CANCEL),
        "arrays": plan.arrays,
        "jobs": sum(map(len, plan.jobs)),
        "gpu_hours": plan.gpu_hours,
        "likely_gpu_hours": plan.likely_gpu_hours,
        "first_start_s": plan.first_start_s,
        "later": plan.later,
        "notes": [*plan.notes, *plan.remarks],
        "runs": [_document(item) for item in plan.runs],
    }


def _ds_config_of(item: PlannedRun) -> dict[str, Any]:
    assert item.run is not None
    run, sizes = item.run, {"micro_batch": item.micro_batch, "accumulation": item.accumulation}
    config = changed(run.config, item.changes)
    train = config.train_json(**sizes, world_size=run.world_size)
    return ds_config.render(train, **sizes, world_size=run.world_size, overrides=config.deepspeed)


def config_page(item: PlannedRun, page: Page) -> str:
    """One run with its DeepSpeed configuration."""
    config = json.dumps(_ds_config_of(item), indent=2)
    return f"{page.paint(item.name, Style.BOLD)} · ds_config.json\n{config}"


def _rows(items: Iterable[PlannedRun], extra: Sequence[str]) -> list[list[Cell | str]]:
    """Like repeats of a point share a row, `lr-0.1 × 3`."""
    rows: dict[str, list[Cell | str]] = {}
    repeats: Counter[str] = Counter()
    for item in items:
        row = _row(item, extra)
        point = item.run.params if item.run else item.params or item.name
        alike = json.dumps([point, *map(str, row[:1] + row[2:])])
        rows.setdefault(alike, row)
        repeats[alike] += 1
    for alike, row in rows.items():
        if repeats[alike] > 1:
            row[1] = f"{row[1]} × {repeats[alike]}"
    return list(rows.values())


def _row(item: PlannedRun, extra: Sequence[str]) -> list[Cell | str]:
    sign = Cell(item.sign, _STYLES[item.sign])
    reason = Cell(clean(item.why), Style.DIM)
    if item.run is None:
        return [sign, item.name, *[""] * (len(_HEADER) + len(extra) - 3), reason]
    run = item.run
    steps = f"{run.target_step:,}" if run.target_step else ""
    slurm = run.config.slurm
    plain = slurm.time.isdecimal() or MINUTES_SECONDS.fullmatch(slurm.time)
    limit = "" if run.config.executor != "slurm" else f"{slurm.time_min:,} min" if plain else slurm.time
    values = [getattr(slurm, name) or "" for name in extra]
    if item.likely:
        limit = f"{duration(item.likely.seconds)}{f' of {limit}' if limit else ''}"
    name = changed_name(item.name, " ".join(item.changes))
    machine = _machine(run)
    return [
        sign,
        name,
        _parameters(item),
        _batch(item),
        _states(item),
        _memory(item),
        machine,
        *values,
        limit,
        steps,
        reason,
    ]


def _parameters(item: PlannedRun) -> Cell | str:
    """`124M`, `6.74B`; empty if the run names no model."""
    if item.needs.parameters is None:
        return _UNKNOWN if item.needs.model else ""
    return short_number(item.needs.parameters).replace("G", "B")  # as the models' own names have it


def _states(item: PlannedRun) -> Cell | str:
    """`2.0 GB`: the memory of weights, gradients and optimizer on a GPU."""
    states = item.needs.states
    return "" if states is None else f"{states.gpu_gb:,.1f} GB"


def _batch(item: PlannedRun) -> str:
    """`64 = 8 × 2 × 4 ranks`: global batch, micro-batch, accumulation, ranks."""
    run = item.run
    if run is None or run.global_batch is None:
        return ""
    ranks = sharers(run.world_size, run.config.train.ranks_per_sample)
    if item.micro_batch is None:
        return f"{run.global_batch} = auto × {ranks}"
    return f"{run.global_batch} = {item.micro_batch} × {item.accumulation} × {ranks}"


def _memory(item: PlannedRun) -> Cell | str:
    """`12.3 of 76.0 GB`: the predicted peak of a rank, and the memory that it can use."""
    if item.predicted_gb is None:
        return ""
    if item.usable_gb is None:
        return f"{item.predicted_gb:.1f} GB"
    tight = item.predicted_gb > HEADROOM * item.usable_gb
    return Cell(f"{item.predicted_gb:.1f} of {item.usable_gb:.1f} GB", Style.YELLOW if tight else Style.PLAIN)


def _machine(run: Run) -> str:
    gpus = run.config.slurm.gpus if run.config.executor == "slurm" else 0
    devices = count(gpus, "GPU") if gpus else count(run.ranks_per_node, "rank")
    return f"{count(run.nodes, 'node')} × {devices}"


def _document(item: PlannedRun) -> Mapping[str, Any]:
    document: dict[str, Any] = {"name": item.name, "action": item.sign.name.lower(), "reason": item.why}
    document["differing"] = list(item.differing)
    if (run := item.run) is None:
        return document
    return document | {
        "params": run.params,
        "command": run.config.command and list(run.config.command),
        "config_hash": run.config_hash,
        "target_step": run.target_step,
        **{name: getattr(run.config.slurm, name) for name in _ASKED},
        "nodes": run.nodes,
        "ranks_per_node": run.ranks_per_node,
        "world_size": run.world_size,
        "global_batch": run.global_batch,
        "micro_batch": item.micro_batch,
        "accumulation": item.accumulation,
        "changes": list(item.changes),
        "likely_s": item.likely and item.likely.seconds,
        "likely_by": item.likely and item.likely.basis,
        "predicted_gb": item.predicted_gb,
        "usable_gb": item.usable_gb,
        "parameters": item.needs.parameters,
        "states": {"gpu_gb": states.gpu_gb, **asdict(states)} if (states := item.needs.states) else None,
        "warnings": [asdict(item.needs.shortage)] if item.needs.shortage else [],
        "ds_config": _ds_config_of(item),
    }
