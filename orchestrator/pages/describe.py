"""The details of a campaign, of a run, and of the settings."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dscampaign.db.campaigns import METRICS_SOURCE, REPORT_REFUSED
from dscampaign.db.gpu_records import AttemptGpus, highest
from dscampaign.db.records import AttemptRow, EventRow, MemoryObservation, kept_every
from dscampaign.db.states import CauseCode, RunState
from dscampaign.jobs.shared.state_layout import ranks_per_sample
from dscampaign.orchestrator.campaign.activity import doing, event_text, turn
from dscampaign.orchestrator.campaign.documents import CampaignDetails, RunDetails, batch_of, forwards_document
from dscampaign.orchestrator.campaign.status import NO_METRICS
from dscampaign.orchestrator.campaign.titles import codes_text
from dscampaign.orchestrator.commands import SPEC, typed
from dscampaign.orchestrator.failures.exits import signal_name
from dscampaign.orchestrator.failures.verdict import HEADLINE_LIMIT
from dscampaign.orchestrator.formatting import clean, count, duration, figure, moment, short_number, source, words
from dscampaign.orchestrator.spec.batch_size import sharers

from .rows import counts_text, state_look
from .status import attempt_cell, causes, state_cell
from .text import PLAIN, Page, Style, fold


def gpu_lines(used: AttemptGpus | None) -> Iterator[str]:
    """Two lines of an attempt, for example `gpus: 2 × NVIDIA H200, 94 % busy, 1,069 W, ...`."""
    if used is None:
        return
    names = Counter(clean(gpu.name) or "GPU" for gpu in used.gpus)
    part, capped = used.per_token, highest(gpu.power_capped for gpu in used.gpus) or 0.0
    slowed = highest(gpu.slowed for gpu in used.gpus) or 0.0
    gpus = _joined(
        " + ".join(f"{number} × {name}" for name, number in names.items()),
        _filled("{:.0f} % busy", used.util_pct),
        _filled("{:,.0f} W", used.power_w),
        _filled("at most {:.0f} °C", highest(gpu.temperature_max_c for gpu in used.gpus)),
    )
    energy = _joined(
        _filled("{:,.1f} kJ", used.energy_j and used.energy_j / 1e3),
        f"{figure(part.j_per_token, 3)} J/token over steps {part.first_step + 1:,} to {part.last_step:,}"
        if part
        else "",
        f"at its power limit {100 * capped:.0f} % of the time" if capped >= 0.005 else "",
        f"slowed down {100 * slowed:.1f} % of the time" if slowed else "",
    )
    yield f"gpus: {gpus}"
    if energy:
        yield f"energy: {energy}"


def _joined(*parts: str, by: str = ", ") -> str:
    return by.join(filter(None, parts))


def _filled(text: str, value: float | str | None) -> str:
    return "" if value is None else text.format(value)


def campaign_page(facts: CampaignDetails, page: Page) -> str:
    """A campaign: its place, its origin, its state, the causes of failures with the next commands, its last events."""
    campaign, status = facts.status.campaign, facts.status
    provenance = campaign.provenance
    commit = _filled(" at {}", provenance.get("git") or None)
    pairs = {
        "campaign": campaign.name,
        "runs": f"{count(len(status.runs), 'run')}: {counts_text(status.shown_counts, status.counts.early, page)}",
        "spec": f"{provenance.get('spec', '')}{commit}",
        "working folder": str(provenance.get("workdir", "")),
        "executor": campaign.executor,
        "dir": campaign.dir,
        "store": facts.store,
        "created": f"{moment(campaign.created_s)}, by version {provenance.get('version', '?')}",
    }
    lines = _pairs(pairs, page)
    lines += _section("Failures", causes(status, page), page)
    names = {run.run_id: run.name for run in status.runs}
    return "\n".join([*lines, *_section("Events", _events(facts.events, page, names), page)])


class RunText(NamedTuple):
    """The explanation of a run: facts by name, "" for unknown, lines, and the command to type next."""

    facts: Mapping[str, str]
    attempts: Sequence[str]
    events: Sequence[str]
    next: str


def run_page(facts: RunDetails, page: Page) -> str:
    """A run: its figures, every attempt with its verdict and the proof, its events, the next command."""
    text = run_text(facts, page)
    lines = _pairs(text.facts, page)
    lines += [*_section("Attempts", text.attempts, page), *_section("Events", text.events, page)]
    return "\n".join([*lines, "", page.paint(f"next: {text.next}", Style.CYAN)])


def run_text(facts: RunDetails, page: Page = PLAIN) -> RunText:
    """Return the parts of `run_page`."""
    attempts, events = list(_attempts(facts, page)), list(_events(facts.events, page))
    return RunText(_run_pairs(facts, page), attempts, events, _next_command(facts))


def _next_command(facts: RunDetails) -> str:
    run, campaign = facts.run, facts.campaign.name
    name, watch = (campaign, run.name), typed("status", campaign, "--watch")
    reconcile = typed("reconcile", campaign, "--watch")
    match run.state:
        case RunState.FAILED | RunState.HELD:
            evidence = facts.attempts[-1].evidence if facts.attempts else {}
            unclear = evidence.get("sure") == "unsure" and not evidence.get("frames")
            retry = typed("logs", *name) if unclear else f"{typed('retry', *name)}   (once the cause is fixed)"
            return f"{reconcile}   (with {', '.join(run.cause.names)} set)" if run.cause and run.cause.names else retry
        case RunState.SCREENED | RunState.CANCELLED | RunState.COMPLETED if (
            facts.now.early or run.state != RunState.COMPLETED
        ):
            return typed("retry", *name)
        case RunState.RUNNING:
            return typed("logs", *name, "-f")
        case RunState.QUEUED if run.has_cause(CauseCode.NEVER_STARTS):
            return f"{typed('submit', SPEC)}   (once its slurm section is changed)"
        case RunState.PENDING | RunState.QUEUED:
            return watch if facts.status.acting else reconcile
    return typed("report", campaign) if facts.status.settled else watch


def _run_pairs(facts: RunDetails, page: Page) -> dict[str, str]:
    run, latest, now = facts.run, facts.latest, facts.now
    look = state_cell(state_look(now.shown, early=now.early))
    waits = turn(facts.status) if run.state is RunState.PENDING else ""
    state = _joined(page.paint(look.text, look.style), doing(now, facts.status), clean(run.reason) or waits, by=": ")
    changes = facts.attempts[-1].changes if facts.attempts else ""
    changed = f"{', '.join(changes.split())}, so that it fits into memory" if changes else ""
    params = ", ".join(f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in run.params.items())
    notes = {event.kind: clean(event.message) for event in facts.events}
    every = kept_every(row.evidence for row in facts.attempts)
    thinned = f"thinned: one step in {every} is left" if every > 1 else ""
    metrics = _joined(notes.get(METRICS_SOURCE, ""), thinned, by="; ")
    if latest is None and run.state == RunState.COMPLETED:
        metrics = notes.get(REPORT_REFUSED) or metrics or NO_METRICS
    pairs = {
        "run": f"{run.name} of {facts.campaign.name}",
        "changed": page.paint(changed, Style.YELLOW),
        "state": state,
        "parameters": clean(params),
        "batch": _batch(facts),
        "command": " ".join(clean(word) for word in run.config.get("command") or ()),
        "job": _joined(now.job_id, now.node_list or "", by=" on ") if now.job_id else "",
        "step": _progress(facts),
        "code": codes_text([*(row.code for row in facts.attempts if row.config_hash == run.config_hash), run.code]),
        "metrics": metrics,
        "folder": str(facts.paths.dir),
        "experiment": run.config_hash,
    }
    for tool, to in forwards_document(facts.events).items():
        pairs[clean(tool)] = clean(f"run {to['run_id']}, {to['where']}")
    if latest:
        when = "" if run.state is RunState.COMPLETED else " at the last step"
        held_out = f"held out {figure(latest.eval_loss)}" if latest.eval_loss is not None else ""
        pairs["loss"] = _joined(figure(now.loss), held_out)
        mfu = f", MFU {now.mfu:.1%}" if now.mfu is not None else ""
        pairs["speed"] = f"{short_number(now.tokens_per_s)} tokens/s{mfu}{when}" if now.tokens_per_s else ""
        pairs["memory"] = f"{latest.mem_reserved_gb:.1f} GB reserved" if latest.mem_reserved_gb else ""
    if facts.checkpoints:
        newest = facts.checkpoints[0]
        pairs["checkpoint"] = f"step {newest.step:,}, attempt {newest.generation}: {newest.path}"
    return pairs


def _progress(facts: RunDetails) -> str:
    """`120 of 400, 5 s ago; about 12 min left`."""
    if facts.latest is None:
        return ""
    ts_s, left_s = facts.latest.ts_s, facts.status.left.runs.get(facts.run.id)
    running = facts.run.state is RunState.RUNNING and ts_s is not None
    age = f", {duration(facts.status.now_s - (ts_s or 0.0))} ago" if running else ""
    left = f"; about {duration(left_s)} left" if left_s is not None else ""
    return f"{facts.latest.step:,} of {facts.run.target_step or '?'}{age}{left}"


def _batch(facts: RunDetails) -> str:
    """`64 = 8 × 2 × 4 ranks`, and the first micro-batch if it is smaller now."""
    spec, now = batch_of(facts.run), facts.attempts[-1] if facts.attempts else None
    if not spec["global_batch"]:
        return ""
    micro, accumulation = (now.micro_batch, now.accumulation) if now else (spec["micro_batch"], spec["accumulation"])
    began = f" (began with micro-batch {spec['micro_batch']})" if spec["micro_batch"] not in (None, micro) else ""
    ranks = sharers(spec["world_size"] or 1, ranks_per_sample(facts.run.config.get("train", {})))
    if micro is None:
        return f"{spec['global_batch']} over {ranks}, micro-batch not found yet"
    return f"{spec['global_batch']} = {micro} × {accumulation} × {ranks}{began}"


def _attempts(facts: RunDetails, page: Page) -> Iterator[str]:
    code = None
    for row in facts.attempts:
        look, first = attempt_cell(row), row.start_step or 0
        took = f", {duration(row.ended_s - row.started_s)}" if row.ended_s and row.started_s else ""
        parts = (
            f"job {row.job_id}" if row.job_id else "",
            f"steps {first + 1:,} to {row.last_step:,}" if row.last_step and row.last_step > first else "no step",
            _filled("from {}", moment(row.started_s) if row.started_s else None) + took,
            f"micro-batch {row.micro_batch} × {row.accumulation}" if row.micro_batch else "",
            f"changed: {', '.join(row.changes.split())}" if row.changes else "",
            f"code {row.code}" if code not in (None, row.code) else "",
        )
        code = row.code
        yield f"{row.generation}  {page.paint(look.text, look.style)}  {_joined(*parts, by=' · ')}"
        memory = _memory_line(row, facts.memory.get(row.id))
        lines = [f"memory: {memory}"] if memory else []
        lines += [*gpu_lines(facts.gpus.get(row.id)), *_verdict(row, facts, page)]
        yield from (f"   {line}" for line in lines)


def _memory_line(row: AttemptRow, memory: MemoryObservation | None) -> str:
    """`65.9 of 84.0 GB at the peak, 65.2 predicted (-1.1 %)`; before a peak, the prediction."""
    measured_gb, predicted_gb = memory.peak_gb if memory else None, row.predicted_gb
    usable = f" of {memory.usable_gb:.1f}" if memory and memory.usable_gb else ""
    if memory is None or measured_gb is None:
        if memory and memory.after_init_gb and memory.per_sample_gb and row.micro_batch:  # predicted by its own ranks
            predicted_gb = memory.after_init_gb + memory.per_sample_gb * row.micro_batch
        return f"{predicted_gb:.1f}{usable} GB predicted" if predicted_gb else ""
    error = ""
    if predicted_gb:
        error = f", {predicted_gb:.1f} predicted ({100 * (predicted_gb / measured_gb - 1):+.1f} %)"
    return f"{measured_gb:.1f}{usable} GB at the peak{error}"


def _verdict(row: AttemptRow, facts: RunDetails, page: Page) -> Iterator[str]:
    evidence = row.evidence
    if row.failure_class in (None, "completed"):
        return
    yield page.paint(f"{words(str(row.failure_class))}: {clean(evidence.get('reason') or '')}", Style.BOLD)
    for frame in evidence.get("frames") or ():  # without the folder of the code or of a library
        file = re.sub(r"^.*/(?:code/[0-9a-f]{16}|(?:site|dist)-packages)/", "", clean(str(frame["file"])))
        code = f": {clean(str(frame['code']))}" if frame.get("code") else ""
        yield f"  at {file}:{frame['number']} in {clean(str(frame['function']))}{code}"
    if line := evidence.get("line"):
        rule = _filled(", rule {}", evidence.get("rule") or None)
        yield page.paint(f"proof: {source(line['file'], line['number'])}{rule}", Style.DIM)
        text = " ".join(clean(line["text"]).removeprefix("builtins.").split())
        if text[:HEADLINE_LIMIT] not in " ".join(clean(evidence.get("reason") or "").split()):
            yield page.paint(f"       {clean(line['text'])}", Style.DIM)
    if doubt := _doubt(row, facts):
        yield page.paint(doubt, Style.DIM)
    nodes = evidence.get("nodes") or ()
    explained = any(code for node in nodes for code in (node.get("rank_exits") or {}).values())
    for node in nodes:
        yield page.paint(_node(node, explained=explained), Style.DIM)
    if (job := evidence.get("job")) and job["state"] != "GONE":
        yield page.paint(f"job: {job['state']} {job['exit_code']} {job['nodes']}".rstrip(), Style.DIM)
    if hint := evidence.get("hint"):
        yield f"hint: {clean(hint)}"


def _doubt(row: AttemptRow, facts: RunDetails) -> str:
    """How sure the verdict is, unless it is certain."""
    sure, place = row.evidence.get("sure"), row.evidence.get("place")
    if sure != "unsure":
        return "likely: judged by the kind of error, its place and its time" if sure == "likely" else ""
    if not place:
        return "this line may not show the cause" if row.evidence.get("line") else "nothing shows the cause"
    earlier = [attempt for attempt in facts.attempts if attempt.generation <= row.generation]
    if (times := sum(attempt.evidence.get("place") == place for attempt in earlier)) > 1:
        return f"same error {times} times at the same line: a bug in the script"
    return "the script's own error, once: at the same line again it is a bug in the script"


def _node(node: Mapping[str, Any], *, explained: bool) -> str:
    """How the processes of a node ended, and how full its memory was; `explained`: a rank's end explains the others."""
    steps, launcher = node.get("rank_steps") or {}, node.get("launcher_exit")
    ends = [] if explained and launcher is not None else [f"launcher → {_end(launcher)}"]
    for rank, code in (node.get("rank_exits") or {}).items():
        ends.append(f"rank {rank} → {_end(code)}" + (f" at step {steps[rank]:,}" if rank in steps else ""))
    peak, limit = node.get("memory_peak_bytes"), node.get("memory_limit_bytes")
    if node.get("memory_peak_of") and peak and limit:  # otherwise the peak is not of the job alone
        ends.append(f"host memory {peak / 1e9:.1f} of {limit / 1e9:.1f} GB")
    return f"{node['host']}: {'; '.join(ends)}"


def _end(code: int | None) -> str:
    return "no record" if code is None else signal_name(-code) if code < 0 else str(code)


def _events(events: Sequence[EventRow], page: Page, names: Mapping[int, str] | None = None) -> Iterator[str]:
    for event in sorted(events, key=lambda event: event.ts_s):  # events of a training are stored later
        name = f"{names[event.run_id]}: " if names and event.run_id is not None else ""
        yield f"{page.paint(moment(event.ts_s), Style.DIM)}  {name}{event_text(event)}"


def _pairs(pairs: Mapping[str, str], page: Page) -> list[str]:
    column = max(len(name) for name in pairs) + 2
    lines = [f"{page.paint(name, Style.DIM)}{' ' * (column - len(name))}{text}" for name, text in pairs.items() if text]
    return [row for line in lines for row in fold(line, page.width, column).split("\n")]


def _section(title: str, lines: Iterable[str], page: Page) -> list[str]:
    body = [f"  {line}" for line in lines]
    return ["", page.paint(title, Style.BOLD), *body] if body else []
