"""The plan: a row for like repeats of a run with their batch arithmetic, then a line that sums it up."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from dscampaign.db.states import CANCELLING, RunState
from dscampaign.jobs.shared import ds_config
from dscampaign.jobs.shared.placeholders import OF_A_RANK, filled_words, without_escapes
from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign
from dscampaign.orchestrator.campaign.status import TROUBLED
from dscampaign.orchestrator.campaign.titles import numbered, titles_of
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import clean, count, duration, near_time, rough, shell_line, short_number, some
from dscampaign.orchestrator.memory.config_changes import changed
from dscampaign.orchestrator.memory.prediction import HEADROOM
from dscampaign.orchestrator.reconcile.forecast import Basis
from dscampaign.orchestrator.spec.batch_size import sharers
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.slurm_syntax import MINUTES_SECONDS

from .text import Cell, Page, Style, changed_line, changed_name, table

_STYLES: Final = {Sign.CREATE: Style.GREEN, Sign.RESUBMIT: Style.YELLOW, Sign.KEEP: Style.DIM, Sign.CANCEL: Style.RED}
_LEGEND: Final = "+ create  ~ resubmit  = keep  - cancel"
_ASKED: Final = ("partition", "account", "qos")  # shown if runs differ in them
_HEADER: Final = ("", "run", "params", "batch", "states", "memory", "machine", *_ASKED, "time", "steps", "why")
_DROPPED: Final = ("states", "time", "params", "steps", "memory", "machine")
"""Columns that a narrow terminal does without, the least important first."""

_BASES: Final = {
    Basis.REPEATS: "like runs",  # repeats, or conditions that differ in a field that changes no speed
    Basis.EARLIER: "earlier campaigns",
    Basis.NEAREST: "the nearest conditions",
    None: "their time limit",
}

ROWS_AT_MOST: Final = 60
"""Of a plan with more runs, only `SHOWN_OF_MANY` are shown, those first that do not simply start or continue."""
SHOWN_OF_MANY: Final = 20


def plan_page(plan: Plan, page: Page, *, everything: bool = False) -> str:
    """The plan with its summary; `everything`: a row for every run, however many there are."""
    few = everything or len(plan.runs) <= ROWS_AT_MOST
    shown = plan.runs if few else sorted(plan.runs, key=lambda item: not _is_special(item))[:SHOWN_OF_MANY]
    hidden = len(plan.runs) - len(shown)
    more = f"… and {count(hidden, 'more run')}: `{typed('plan', SPEC, '--all')}`"
    sections = [
        [page.paint(_LEGEND, Style.DIM)],
        table(page, _HEADER, _rows(shown), "--r-rr-----rw", _DROPPED) + [page.paint(more, Style.DIM)] * bool(hidden),
        _command(plan),
        [
            f"{page.paint(same[0].sign, _STYLES[same[0].sign])} {_and_more(same)}"
            f"{', from the next attempt' if same[0].sign is Sign.KEEP else ''}: {clean(', '.join(same[0].differing))}"
            for same in alike((item for item in plan.runs if item.differing), lambda item: (item.sign, item.differing))
        ],
        [changed_line(item.name, " ".join(item.changes)) for item in plan.runs if item.changes],
        [  # nothing is refused, as the arithmetic may err
            f"{page.paint('warning:', Style.YELLOW)} {_and_more(same)}: {need.message}\n  hint: {need.hint}"
            for same in alike((item for item in plan.runs if item.starts), lambda item: item.needs.shortage)
            if (need := same[0].needs.shortage)
        ],
        _ended_badly(plan),
        [clean(line) for line in (*plan.notes, *(f"note: {remark}" for remark in plan.remarks))],
        [summary(plan, page)],
    ]
    return "\n\n".join("\n".join(section) for section in sections if section)


def _is_special(item: PlannedRun) -> bool:
    return bool(item.changes or item.needs.shortage or item.differing) or item.sign in (Sign.RESUBMIT, Sign.CANCEL)


def summary(plan: Plan, page: Page) -> str:
    """`Plan: 24 to submit, 3 kept, 0 to cancel · 6 sbatch arrays · at most 1,536 GPU-hours`, or how many are likely."""
    start = plan.count(Sign.CREATE, Sign.RESUBMIT)
    parts = [f"{start:,} to submit, {plan.count(Sign.KEEP):,} kept, {plan.count(Sign.CANCEL):,} to cancel"]
    parts += [f"{count(len(plan.following), 'follow-up')} later"] if plan.following else []
    parts += [f"at most {count(plan.later, 'more run')} of the search"] if plan.later else []
    if plan.hours is None and start:
        most = max((run.config.local.parallel for run in plan.starting), default=1)
        likely = [item.likely.seconds for item in plan.runs if item.starts and item.likely]
        parts += [f"on this machine, {most} at a time"]
        known = len(likely) == start + len(plan.following)
        parts += [f"likely {duration(sum(likely) / min(most, start))}{_basis(plan)}"] if known else []
    elif plan.hours and (start or plan.following):
        jobs = sum(map(len, plan.jobs))
        parts += [count(jobs, "job")] if jobs < start else []
        parts += [count(plan.arrays, "sbatch array")] if start else []
        hours = plan.hours.likely
        limit = f"at most {rough(plan.hours.most)}"
        parts += [f"{limit} GPU-hours" if hours is None else f"likely {rough(hours)} GPU-hours{_basis(plan)}, {limit}"]
    if plan.first_start_s and start:
        parts += [f"Slurm expects to start at {near_time(plan.first_start_s, time.time())}"]
    return f"{page.paint('Plan:', Style.BOLD)} {' · '.join(parts)}"


def _basis(plan: Plan) -> str:
    """` (by their repeats)`, ` (by earlier campaigns, their time limit)`, the most frequent first."""
    counts = Counter(item.likely and item.likely.basis for item in plan.runs if item.starts)
    counts[None] += len(plan.following)
    return f" (by {', '.join(_BASES[basis] for basis, _ in counts.most_common() if counts[basis])})"


def _command(plan: Plan) -> list[str]:
    """The command of the first run, filled in as for its next attempt, if it is a script of your own."""
    items = sorted((item for item in plan.runs if item.run), key=lambda item: not item.starts)
    item = next((item for item in items if item.run and item.run.config.command), None)
    if item is None or item.run is None:
        return []
    filled = filled_words(item.run.config.command or (), {**_sizes(item), "resume_from": ""})
    words = [without_escapes(word) for word in filled]
    if (added := f"--local_rank={{{OF_A_RANK}}}") in words:  # as a launcher adds it
        words = [item.run.config.launcher or "deepspeed", *(word for word in words if word != added)]
    return [f"{item.name} runs `{clean(shell_line(words))}`"]


def _sizes(item: PlannedRun) -> dict[str, int | None]:
    return {"micro_batch": item.micro_batch, "accumulation": item.accumulation}


def _and_more(items: Sequence[PlannedRun]) -> str:
    return items[0].name if len(items) == 1 else f"{items[0].name} and {count(len(items) - 1, 'more run')}"


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
    own = ("campaign", "executor", "arrays", "first_start_s")
    return {
        **{name: getattr(plan, name) for name in own},
        "to_submit": plan.count(Sign.CREATE, Sign.RESUBMIT),
        "kept": plan.count(Sign.KEEP),
        "to_cancel": plan.count(Sign.CANCEL),
        "later": len(plan.following) + plan.later,
        "jobs": sum(map(len, plan.jobs)),
        "gpu_hours": plan.hours and plan.hours.most,
        "likely_gpu_hours": plan.hours and plan.hours.likely,
        "notes": [*plan.notes, *plan.remarks],
        "runs": [_document(item) for item in plan.runs],
    }


def _ds_config_of(item: PlannedRun, run: Run) -> dict[str, Any]:
    config, sizes = changed(run.config, item.changes), _sizes(item)
    train = config.train_json(**sizes, world_size=run.world_size)
    return ds_config.render(train, **sizes, world_size=run.world_size, overrides=config.deepspeed)


def config_page(item: PlannedRun, page: Page) -> str:
    """One run with its DeepSpeed configuration."""
    assert item.run
    config = json.dumps(_ds_config_of(item, item.run), indent=2)
    return f"{page.paint(item.name, Style.BOLD)} · ds_config.json\n{config}"


def _rows(items: Iterable[PlannedRun]) -> list[list[Cell | str]]:
    """Like repeats of a point share a row, `lr-0.1 × 3`."""

    def point(pair: tuple[PlannedRun, list[Cell | str]]) -> str:
        item, row = pair
        return json.dumps([item.run.params if item.run else item.params or item.name, *map(str, row[:1] + row[2:])])

    rows, items = [], list(items)
    differ = [name for name in _ASKED if len({getattr(item.run.config.slurm, name) for item in items if item.run}) > 1]
    for same in alike(((item, _row(item, differ)) for item in items), point):
        sign, name, *cells = same[0][1]
        rows.append([sign, f"{name} × {len(same)}" if len(same) > 1 else name, *cells])
    return rows


def _row(item: PlannedRun, differ: Sequence[str]) -> list[Cell | str]:
    sign, reason = Cell(item.sign, _STYLES[item.sign]), Cell(clean(item.why), Style.DIM)
    if item.run is None:
        return [sign, item.name, *[""] * (len(_HEADER) - 3), reason]
    run, states, need = item.run, item.needs.states, item.needs.parameters
    unknown: Cell | str = Cell("unknown", Style.DIM) if item.needs.model else ""
    title = "" if run.ordinal is None else titles_of({item.name: run.params})[item.name]
    slurm = run.config.slurm
    in_minutes = slurm.time.isdecimal() or MINUTES_SECONDS.fullmatch(slurm.time)
    limit = "" if run.config.executor != "slurm" else f"{slurm.time_min:,} min" if in_minutes else slurm.time
    sizes = "auto" if item.micro_batch is None else f"{item.micro_batch} × {item.accumulation}"
    ranks = sharers(run.world_size, run.config.train.ranks_per_sample)
    gpus = run.config.slurm.gpus if run.config.executor == "slurm" else 0
    return [
        sign,
        changed_name(numbered(item.name, title), " ".join(item.changes)),
        unknown if need is None else short_number(need).replace("G", "B"),  # as models' own names have it
        f"{run.global_batch} = {sizes} × {ranks}" if run.global_batch else "",
        "" if states is None else f"{states.gpu_gb:,.1f} GB",
        _memory(item),
        f"{count(run.config.nodes, 'node')} × {count(gpus, 'GPU') if gpus else count(run.ranks_per_node, 'rank')}",
        *(getattr(run.config.slurm, name) or "" if name in differ else "" for name in _ASKED),
        " of ".join(filter(None, (item.likely and duration(item.likely.seconds), limit))),
        f"{run.target_step:,}" if run.target_step else "",
        reason,
    ]


def _memory(item: PlannedRun) -> Cell | str:
    """`12.3 of 76.0 GB`: the predicted peak of a rank, and the memory that it can use."""
    if item.predicted_gb is None or item.usable_gb is None:
        return "" if item.predicted_gb is None else f"{item.predicted_gb:.1f} GB"
    tight = item.predicted_gb > HEADROOM * item.usable_gb
    return Cell(f"{item.predicted_gb:.1f} of {item.usable_gb:.1f} GB", Style.YELLOW if tight else Style.PLAIN)


def _document(item: PlannedRun) -> Mapping[str, Any]:
    document: dict[str, Any] = {"name": item.name, "action": item.sign.name.lower(), "reason": item.why}
    document["differing"] = list(item.differing)
    if (run := item.run) is None:
        return document
    same = ("params", "config_hash", "target_step", "ranks_per_node", "world_size", "global_batch")
    return document | {
        **{name: getattr(run, name) for name in same},
        "nodes": run.config.nodes,
        **{name: getattr(run.config.slurm, name) for name in ("partition", "account", "qos")},
        **{name: getattr(item, name) for name in ("micro_batch", "accumulation", "predicted_gb", "usable_gb")},
        "command": run.config.command and list(run.config.command),
        "changes": list(item.changes),
        "likely_s": item.likely and item.likely.seconds,
        "likely_by": item.likely and item.likely.basis,
        "parameters": item.needs.parameters,
        "states": {"gpu_gb": states.gpu_gb, **asdict(states)} if (states := item.needs.states) else None,
        "warnings": [asdict(item.needs.shortage)] if item.needs.shortage else [],
        "ds_config": _ds_config_of(item, run),
    }
