"""The status page: counts, one row a run, what failed with the next command, who reconciles it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from ....db.records import UNSETTLED_RUN, RunState, RunStatus
from ...campaign.code_text import mixed_code
from ...campaign.status import CampaignStatus
from ...formatting import clean, count, duration, figure, short_number, shorten
from ...reconcile.lease import LeaseHolder
from .states import changed_line, changed_name, counts_line, state_cell
from .text import Cell, Page, Style, table

_HEADER = ("run", "state", "step", "loss", "last tok/s", "mfu", "memory", "micro-batch", "tries", "")
_RIGHT = "--rrrrr-r-"
_DROPPED = ("mfu", "memory", "tries", "micro-batch", "last tok/s", "", "loss")
"""Columns that a narrow terminal does without, the least important first."""

_TROUBLED = (RunState.FAILED, RunState.HELD)
_FIXED_LINES = 6
"""Lines around the table."""


def status_page(status: CampaignStatus, page: Page, height: int | None = None) -> str:
    """The whole page; runs that are over give way to `height`, the lines of a terminal where it is redrawn."""
    troubled = [run for run in status.runs if run.state in _TROUBLED]
    failures = _failures(status.campaign.name, troubled, page)
    rows, hidden = _fitting(status.runs, None if height is None else height - _FIXED_LINES - len(failures))
    lines = [headline(status, page), ""]
    lines += table(page, _HEADER, (_row(run, status) for run in rows), _RIGHT, _DROPPED)
    lines += [page.paint(f"… and {count(hidden, 'more run')}", Style.DIM)] if hidden else []
    changed = [changed_line(run.name, run.changes) for run in rows if run.changes]
    lines += ["", *(page.paint(line, Style.YELLOW) for line in changed)] if changed else []
    mixed = mixed_code((run.name, run.code or "") for run in status.runs)
    lines += ["", page.paint(mixed, Style.YELLOW)] if mixed else []
    lines += ["", *failures] if failures else []
    footer = _footer(status)
    return "\n".join([*lines, *(["", page.paint(footer, Style.DIM)] if footer else [])])


def headline(status: CampaignStatus, page: Page) -> str:
    """Name and counts in one line."""
    name = page.paint(status.campaign.name, Style.BOLD)
    return f"{name} · {count(len(status.runs), 'run')}: {counts_line(page, status.counts)}"


def steps_line(status: CampaignStatus) -> str:
    """How far all runs together are; "" where one of them does not know its last step."""
    if not all(run.target_step for run in status.runs):
        return ""
    done = sum(min(run.step or 0, run.target_step or 0) for run in status.runs)
    return f"{done:,} of {sum(run.target_step or 0 for run in status.runs):,} steps"


def _row(run: RunStatus, status: CampaignStatus) -> list[Cell | str]:
    memory = f"{run.mem_reserved_gb:.1f} GB" if run.mem_reserved_gb is not None else ""
    return [
        changed_name(run.name, run.changes),
        state_cell(run.state),
        _step(run),
        figure(run.loss),
        short_number(run.tokens_per_s),
        f"{run.mfu:.1%}" if run.mfu is not None else "",
        memory,
        _micro_batch(run, status.first_micro_batch.get(run.run_id)),
        str(run.generation or ""),
        Cell(_note(run, status.now_s), Style.DIM),
    ]


def _step(run: RunStatus) -> str:
    if run.step is None:
        return f"–/{run.target_step:,}" if run.target_step else ""
    return f"{run.step:,}/{run.target_step:,}" if run.target_step else f"{run.step:,}"


def _micro_batch(run: RunStatus, first: int | None) -> Cell:
    if run.micro_batch is None:
        return Cell("")
    reduced = first is not None and first > run.micro_batch
    return Cell(f"{first}→{run.micro_batch}", Style.YELLOW) if reduced else Cell(str(run.micro_batch))


def _note(run: RunStatus, now_s: float) -> str:
    """Why a run waits, or that a running one has been silent for long."""
    if run.state in _TROUBLED:
        return ""
    if run.state is RunState.RUNNING and run.ts_s and now_s - run.ts_s > max(120.0, 20 * (run.step_time_s or 0.0)):
        return f"silent for {duration(now_s - run.ts_s)}"
    return clean(run.reason)


def _fitting(runs: Sequence[RunStatus], room: int | None) -> tuple[Sequence[RunStatus], int]:
    """The runs that fit, those that are at work first to stay, and how many do not."""
    if room is None or len(runs) <= (room := max(room, 3)):
        return runs, 0
    order = (RunState.RUNNING, RunState.FAILED, RunState.HELD, RunState.QUEUED, RunState.PENDING)
    rank = {state: index for index, state in enumerate(order)}
    kept = sorted(runs, key=lambda run: rank.get(run.state, len(order)))[:room]
    chosen = {run.run_id for run in kept}
    return [run for run in runs if run.run_id in chosen], len(runs) - room


def _failures(campaign: str, troubled: Iterable[RunStatus], page: Page) -> list[str]:
    """One block for each reason, since forty runs often fail of one cause; each with what to type next."""
    blocks: dict[tuple[RunState, str], list[str]] = {}
    for run in troubled:
        blocks.setdefault((run.state, clean(run.reason)), []).append(run.name)
    lines = []
    for (state, reason), names in blocks.items():
        style = Style.RED if state is RunState.FAILED else Style.YELLOW
        others = f" and {count(len(names) - 1, 'other')}" if len(names) > 1 else ""
        subject = page.paint(f"{names[0]}{others} {state}", style)
        lines += [f"{subject}: {shorten(reason, None if page.width is None else 3 * page.width)}"]
        lines += [page.paint(f"  next: campaign explain {campaign} {names[0]}", Style.DIM)]
    return lines


def _footer(status: CampaignStatus) -> str:
    """Who reconciles the runs that are not settled."""
    if not any(run.state in UNSETTLED_RUN for run in status.runs):
        return ""
    lease, name = status.reconciler, status.campaign.name
    advice = f"run `campaign reconcile {name} --watch`"
    if lease is None:
        return f"not reconciled yet: {advice}"
    holder = LeaseHolder.parse(lease.holder)
    if status.reconciled_now:
        return f"reconciled by process {holder.pid} on {holder.host}"
    if lease.expires_s > status.now_s:
        return f"the reconciler, process {holder.pid}, has died: {advice}"
    at = time.strftime("%H:%M", time.localtime(lease.expires_s))
    return f"not reconciled since {at} ({duration(status.now_s - lease.expires_s)} ago): {advice}"
