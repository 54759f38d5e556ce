"""All about a campaign, all about a run, and where the settings come from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ....db.records import AttemptRow, EventRow, MemoryObservation, RunState
from ...campaign.code_text import codes_text
from ...campaign.details import CampaignDetails, RunDetails
from ...campaign.documents import batch_of, forwards_document, speed_document
from ...formatting import clean, count, duration, figure, moment, short_number, shorten, source
from ...reconcile.origin import Origin
from ...settings import Setting
from .gpus import gpu_lines
from .states import counts_line, state_cell
from .text import Cell, Page, Style, table

_CLOCKS_AGREE: Final = 0.02


def settings_page(settings: Sequence[Setting], page: Page) -> str:
    """Each setting with its value and its source."""
    rows = ((Cell(s.name, Style.BOLD), Cell(s.value), Cell(s.source, Style.DIM)) for s in settings)
    return "\n".join(table(page, ("setting", "value", "from"), rows))


def campaign_page(facts: CampaignDetails, page: Page) -> str:
    """A campaign: where it is, where it comes from, where it stands, what happened last."""
    campaign, status = facts.status.campaign, facts.status
    provenance = campaign.provenance
    commit = f" at {provenance['git']}" if provenance.get("git") else ""
    pairs = {
        "campaign": campaign.name,
        "runs": f"{count(len(status.runs), 'run')}: {counts_line(page, status.counts)}",
        "spec": f"{provenance.get('spec', '')}{commit}",
        "working folder": str(provenance.get("workdir", "")),
        "executor": campaign.executor,
        "dir": campaign.dir,
        "store": facts.store,
        "created": f"{moment(campaign.created_s)}, by version {provenance.get('version', '?')}",
    }
    lines = _pairs(pairs, page)
    return "\n".join([*lines, *_section("Events", _events(facts.events, page, facts.run_names), page)])


def run_page(facts: RunDetails, page: Page) -> str:
    """A run: its figures, every attempt with its verdict and the proof, what happened when, what to type next."""
    lines = _pairs(_run_pairs(facts, page), page)
    lines += _section("Attempts", _attempts(facts, page), page)
    lines += _section("Events", _events(facts.events, page), page)
    if advice := next_commands(facts):
        lines += ["", *(page.paint(f"next: {line}", Style.CYAN) for line in advice)]
    return "\n".join(lines)


def next_commands(facts: RunDetails) -> list[str]:
    """What to type next, as far as the run's state says."""
    name = f"{facts.campaign.name} {facts.run.name}"
    match facts.run.state:
        case RunState.FAILED | RunState.HELD:
            logs = [f"campaign logs {name}"] if facts.attempts else []
            if lacking := ", ".join(Origin.of(facts.campaign.provenance).held_for(facts.run.reason)):
                again = f"campaign reconcile {facts.campaign.name} --watch   (where {lacking} is set)"
                return [*logs, again, f"campaign retry {name}   (to go on without)"]
            return [*logs, f"campaign retry {name}   (when the cause is gone)"]
        case RunState.CANCELLED:
            return [f"campaign retry {name}"]
        case RunState.RUNNING:
            return [f"campaign logs {name} -f"]
        case RunState.PENDING:
            return [f"campaign reconcile {facts.campaign.name} --watch"]
    return []


def _run_pairs(facts: RunDetails, page: Page) -> dict[str, str]:
    run, latest = facts.run, facts.latest
    look = state_cell(run.state)
    reason = f": {clean(run.reason)}" if run.reason else ""
    params = ", ".join(f"{name} = {json.dumps(value)}" for name, value in run.params.items())
    pairs = {
        "run": f"{run.name} of {facts.campaign.name}",
        "changed": page.paint(_changes(facts), Style.YELLOW),
        "state": page.paint(look.text, look.style) + reason,
        "parameters": clean(params),
        "batch": _batch(facts),
        "command": " ".join(clean(word) for word in run.config.get("command") or ()),
        "step": f"{latest.step:,} of {run.target_step or '?'}" if latest else "",
        "code": codes_text([*(row.code for row in facts.attempts if row.config_hash == run.config_hash), run.code]),
        "folder": str(facts.paths.dir),
        "experiment": run.config_hash,
        **_forwards(facts.events),
    }
    if latest:
        held_out = f"held out {figure(latest.eval_loss)}" if latest.eval_loss is not None else ""
        pairs["loss"] = ", ".join(part for part in (figure(latest.loss), held_out) if part)
        mfu = f", MFU {latest.mfu:.1%}" if latest.mfu is not None else ""
        speed = f"{short_number(latest.tokens_per_s)} tokens/s{mfu} at the last step"
        pairs["speed"] = speed if latest.tokens_per_s else ""
        pairs["memory"] = f"{latest.mem_reserved_gb:.1f} GB reserved" if latest.mem_reserved_gb else ""
    if facts.checkpoints:
        newest = facts.checkpoints[0]
        pairs["checkpoint"] = f"step {newest.step:,}, attempt {newest.generation}: {newest.path}"
    return pairs


def _forwards(events: Sequence[EventRow]) -> dict[str, str]:
    """By tool, where the run is shown there."""
    forwards = forwards_document(events).items()
    return {clean(tool): clean(f"run {found['run_id']}, {found['where']}") for tool, found in forwards}


def _batch(facts: RunDetails) -> str:
    """`64 = 8 × 2 × 4 ranks`, and what it was when the micro-batch has been made smaller since."""
    asked = batch_of(facts.run)
    if not asked["global_batch"]:
        return ""
    now = facts.attempts[-1] if facts.attempts else None
    micro, accumulation = (now.micro_batch, now.accumulation) if now else (asked["micro_batch"], asked["accumulation"])
    began = f" (began with micro-batch {asked['micro_batch']})" if micro != asked["micro_batch"] else ""
    ranks = count(asked["world_size"] or 1, "rank")
    return f"{asked['global_batch']} = {micro} × {accumulation} × {ranks}{began}"


def _changes(facts: RunDetails) -> str:
    """What its newest attempt does not do as the spec says."""
    changes = facts.attempts[-1].changes if facts.attempts else ""
    return f"{', '.join(changes.split())}, so that it fits into memory" if changes else ""


def _attempts(facts: RunDetails, page: Page) -> Iterator[str]:
    for row in facts.attempts:
        look = state_cell(row.state)
        parts = [f"job {row.job_id}" if row.job_id else "", _steps(row), _time(row)]
        parts += [f"micro-batch {row.micro_batch} × {row.accumulation}" if row.micro_batch else ""]
        parts += [f"changed: {', '.join(row.changes.split())}" if row.changes else ""]
        said = " · ".join(part for part in parts if part)
        before = next((prior.code for prior in facts.attempts if prior.generation == row.generation - 1), row.code)
        said += f" · code {row.code}" if row.code != before else ""
        yield f"{row.generation}  {page.paint(look.text, look.style)}  {said}"
        if memory := memory_line(row, facts.memory.get(row.id)):
            yield f"   memory: {memory}"
        if speed := speed_line(facts.events, row.id):
            yield f"   speed: {speed}"
        yield from (f"   {line}" for line in gpu_lines(facts.gpus.get(row.id)))
        yield from (f"   {line}" for line in _verdict(row, page))


def memory_line(row: AttemptRow, seen: MemoryObservation | None) -> str:
    """`65.9 of 84.0 GB at the peak, 65.2 predicted (-1.1 %); 74.1 GB held`; before a peak, what it will need."""
    measured_gb, predicted_gb = seen.peak_gb if seen else None, row.predicted_gb
    usable = f" of {seen.usable_gb:.1f}" if seen and seen.usable_gb else ""
    if seen is None or measured_gb is None:
        needs_gb = _needs_gb(row, seen) or predicted_gb
        return f"{needs_gb:.1f}{usable} GB predicted" if needs_gb else ""
    error = ""
    if predicted_gb:
        error = f", {predicted_gb:.1f} predicted ({100 * (predicted_gb / measured_gb - 1):+.1f} %)"
    held_gb = seen.peak_reserved_gb
    held = f"; {held_gb:.1f} GB held" if held_gb and held_gb != measured_gb else ""
    return f"{measured_gb:.1f}{usable} GB at the peak{error}{held}"


def speed_line(events: Sequence[EventRow], attempt_id: int) -> str:
    """Such as `400k tokens/s (100k a rank), MFU 34.8%, 20.5 ms a step (IQR 0.3) over 80 steps; ...`.

    Nothing where nothing is known.
    """
    said = speed_document(events, attempt_id)
    if said is None:
        return ""
    mfu = f"MFU {said['mfu']:.1%}" if said.get("mfu") else ""
    parts = [f"{short_number(said['tokens_per_s'])} tokens/s{_speed_of_each(said)}", mfu, _step_time(said)]
    rest = [f"warm-up of {count(int(said.get('warm_up_steps', 0)), 'step')} took {said.get('warm_up_s', 0.0):.1f} s"]
    rest += [f"{said['data_wait_share']:.1%} waited for data"] if said.get("data_wait_share", 0.0) >= 0.001 else []
    rest += [f"{said['alloc_retries']:.0f} retries of the allocator"] if said.get("alloc_retries") else []
    off = said.get("clock_ratio", 1.0) - 1.0
    rest += [f"the host's clock says {off:+.0%}"] if abs(off) > _CLOCKS_AGREE else []
    return "; ".join([", ".join(filter(None, parts)), *rest])


def _needs_gb(row: AttemptRow, seen: MemoryObservation | None) -> float | None:
    """What its ranks expected of themselves before their first step."""
    if seen is None or not (seen.after_init_gb and seen.per_sample_gb and row.micro_batch):
        return None
    return seen.after_init_gb + seen.per_sample_gb * row.micro_batch


def _speed_of_each(said: Mapping[str, float]) -> str:
    one = said.get("tokens_per_s_per_gpu")
    return f" ({short_number(one)} a rank)" if one and one != said["tokens_per_s"] else ""


def _step_time(said: Mapping[str, float]) -> str:
    if "step_time_median_s" not in said:
        return ""
    median, spread = (1e3 * said.get(name, 0.0) for name in ("step_time_median_s", "step_time_iqr_s"))
    return f"{figure(median)} ms a step (IQR {figure(spread)}) over {count(int(said.get('steps', 0)), 'step')}"


def _verdict(row: AttemptRow, page: Page) -> Iterator[str]:
    """Class and reason, then the line that proves it, its file and the rule that found it."""
    evidence = row.evidence
    if row.failure_class in (None, "completed"):
        return
    yield page.paint(f"{str(row.failure_class).replace('_', ' ')}: {clean(evidence.get('reason') or '')}", Style.BOLD)
    if line := evidence.get("line"):
        rule = f", rule {evidence['rule']}" if evidence.get("rule") else ""
        yield page.paint(f"proof: {source(line['file'], line['number'])}{rule}", Style.DIM)
        yield page.paint(f"       {clean(line['text'])}", Style.DIM)
    if doubt := _doubt(evidence):
        yield page.paint(doubt, Style.DIM)
    for node in evidence.get("nodes") or ():
        yield page.paint(_node(node), Style.DIM)
    if (job := evidence.get("job")) and job["state"] != "GONE":
        yield page.paint(f"job: {job['state']} {job['exit_code']} {job['nodes']}".rstrip(), Style.DIM)
    if hint := evidence.get("hint"):
        yield f"hint: {clean(hint)}"


def _doubt(evidence: Mapping[str, Any]) -> str:
    """How sure the verdict is, where it is not certain, and what would decide it."""
    match evidence.get("sure"):
        case "likely":
            return "likely: judged by the kind of error, and by where and when it was raised"
        case "unsure":
            return f"unsure; what would decide it: {clean(evidence.get('would_decide') or 'another attempt')}"
    return ""


def _node(node: Mapping[str, Any]) -> str:
    """How the processes of a node ended, and how full its memory was where that is known."""
    steps = node.get("rank_steps") or {}
    places = {rank: f" at step {steps[rank]:,}" if rank in steps else "" for rank in node["rank_exits"]}
    ends = ", ".join(f"rank {rank} → {_exit(code)}{places[rank]}" for rank, code in node["rank_exits"].items())
    peak, limit = node.get("memory_peak_bytes"), node.get("memory_limit_bytes")
    known = bool(node.get("memory_peak_of"))  # without it: the peak of whatever enclosed the job
    memory = f"; host memory {peak / 1e9:.1f} of {limit / 1e9:.1f} GB" if known and peak and limit else ""
    return f"{node['host']}: launcher → {_exit(node['launcher_exit'])}; {ends}{memory}"


def _exit(code: int | None) -> str:
    return "no record" if code is None else str(code)


def _steps(row: AttemptRow) -> str:
    if row.last_step is None or row.last_step <= (row.start_step or 0):
        return "no step"
    return f"steps {(row.start_step or 0) + 1:,} to {row.last_step:,}"


def _time(row: AttemptRow) -> str:
    if row.started_s is None:
        return ""
    took = f", {duration(row.ended_s - row.started_s)}" if row.ended_s else ""
    return f"from {moment(row.started_s)}{took}"


def _events(events: Sequence[EventRow], page: Page, names: Mapping[int, str] | None = None) -> Iterator[str]:
    for event in events:
        name = f"{names[event.run_id]}: " if names and event.run_id is not None else ""
        yield f"{page.paint(moment(event.ts_s), Style.DIM)}  {name}{_said(event)}"


def _said(event: EventRow) -> str:
    """The event's message; of one that a script reported without words, its main facts."""
    if event.message:
        return clean(event.message)
    facts = [f"{clean(name)} {_fact(value)}" for name, value in event.data.items() if not isinstance(value, dict)]
    return shorten(": ".join(part for part in (event.kind, ", ".join(facts)) if part), 120)


def _fact(value: Any) -> str:
    if isinstance(value, float):
        return figure(value)
    return clean(value if isinstance(value, str) else json.dumps(value))


def _pairs(pairs: Mapping[str, str], page: Page) -> list[str]:
    width = max(len(name) for name in pairs)
    return [f"{page.paint(name.ljust(width), Style.DIM)}  {text}" for name, text in pairs.items() if text]


def _section(title: str, lines: Iterable[str], page: Page) -> list[str]:
    body = [f"  {line}" for line in lines]
    return ["", page.paint(title, Style.BOLD), *body] if body else []
