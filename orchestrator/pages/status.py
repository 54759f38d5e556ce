"""The status page: counts, a row for each run or condition, failures, next commands; and the look of a state."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from math import ceil
from statistics import median

from dscampaign.db.records import COMPLETED_EARLY, AttemptRow, RunStatus
from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.status import TROUBLED, CampaignStatus, badness, failures_of, no_metrics
from dscampaign.orchestrator.campaign.titles import mixed_code, numbered
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import (
    clean,
    count,
    duration,
    figure,
    near_time,
    short_number,
    shorten,
    shorten_middle,
    some,
    words,
)
from dscampaign.orchestrator.reconcile.lease import LeaseHolder

from .rows import FIGURES, ShownRun, counts_text, shown_run, state_look
from .text import Cell, Page, Style, changed_line, changed_name, fold, table


def state_cell(look: tuple[str, str]) -> Cell:
    """The state of a run or an attempt in a table, as `state_look` returns it."""
    text, colour = look
    return Cell(text, Style[colour.upper()])


def attempt_cell(row: AttemptRow) -> Cell:
    """The state of an attempt; an orderly stop is no failure."""
    stopped = row.failure_class == FailureClass.STOPPED
    state = FailureClass.STOPPED if stopped else row.state
    return state_cell(state_look(state, early=row.failure_class == COMPLETED_EARLY))


_HEADER = (
    "run", "state", "step", "left", "loss", "tok/s", "mfu", "memory", "micro-batch", "tries", "job", "nodes",
)  # fmt: skip
_RIGHT = "--rrrrrr-r--"
_DROPPED = ("nodes", "job", "mfu", "memory", "tries", "micro-batch", "left")
"""Columns that a narrow terminal does without, the least important first."""
_NAME_SHARE = 0.45
"""Of a narrow screen, for the name of a run or a condition."""

_OF_CONDITIONS = ("condition", "runs", "steps", "loss", "tok/s")
_MOST_NOTES = 10


def status_page(
    status: CampaignStatus, page: Page, height: int | None = None, whole: CampaignStatus | None = None
) -> str:
    """The whole page, or the part that fits into `height` lines of a screen.

    `whole` is the campaign, if `status` has chosen runs of it alone.
    """
    whole_conditions = status.settled and not whole and any(run.repeat for run in status.runs)
    if height is None or (len(status.runs) <= height and not whole_conditions):
        shown = _shown(status.runs, status)
        changed = [changed_line(run.name, run.changes) for run in status.runs if run.changes]
        rows = [*_runs_table(shown, page), *[""] * bool(changed), *(page.paint(line, Style.YELLOW) for line in changed)]
        noted = alike((row for row in shown if row.why and row.run.state not in TROUBLED), lambda row: row.why)
        notes = [f"{some([row.name for row in same], 3)}: {same[0].why}" for same in noted[:_MOST_NOTES]]
        if hidden := sum(map(len, noted[_MOST_NOTES:])):
            notes += [f"… and {count(hidden, 'more run')}: `{typed('explain', status.campaign.name, 'RUN')}`"]
        lines = _page(status, page, rows, causes(status, page), notes, whole)
        if height is None or _height(lines, page) <= height:
            return "\n".join(lines)
    return "\n".join(_screen(status, page, height))


def _page(
    status: CampaignStatus,
    page: Page,
    rows: Sequence[str],
    failures: Sequence[str],
    notes: Sequence[str] | None = None,
    whole: CampaignStatus | None = None,
) -> list[str]:
    """Put the sections together; without `notes` they are brief."""
    shown = [f"shown: {counts_text(status.shown_counts, status.counts.early, page) or 'no run'}"] if whole else []
    mixed = mixed_code((run.name, run.code or "") for run in status.runs)
    silent = no_metrics(status.silent, status.campaign.name if notes is None else "") if status.silent else ""
    named = [(run.name, status.sources[run.run_id]) for run in status.runs if run.run_id in status.sources]
    sources = (
        f"{some([name for name, _ in same], 3)}: {clean(same[0][1].message)}"
        for same in alike(named, lambda pair: pair[1].kind)
    )
    sections = [
        [_first_line(whole or status, page), *shown],
        rows,
        [page.paint(warning, Style.YELLOW) for warning in (mixed, silent) if warning],
        [page.paint(line, Style.DIM) for line in (*sources, *(notes or ()))],
        failures,
        [page.paint(line, Style.DIM) for line in _footer(whole or status)],
    ]
    return [line for section in sections if section for line in ("", *section)][1:]


def _screen(status: CampaignStatus, page: Page, height: int) -> list[str]:
    """The worst conditions, or runs if there are no repeats, and as many causes of failures as leave room for them."""
    failures = causes(status, page, max(1, (height - 13) // 2))
    most = _more(status, len(status.runs))
    around = _page(status, page, ["header", most], failures)
    room = max(1, height - _height(around, page))
    conditions = alike(status.runs, lambda run: run.condition)

    def worst(runs: Sequence[RunStatus]) -> tuple[int, int]:
        states = [badness(run.state) for run in runs]
        return min(states), -states.count(min(states))

    if len(conditions) < len(status.runs):
        worst_first = sorted(conditions, key=worst)[:room]
        shown = [run for condition in worst_first for run in condition]
        rows = table(page, _OF_CONDITIONS, [_condition_row(runs, status, page) for runs in worst_first], "-wrrr")
    else:
        running_first = sorted(status.runs, key=lambda run: -1 if run.state is RunState.RUNNING else badness(run.state))
        chosen = {run.run_id for run in running_first[:room]}
        shown = [run for run in status.runs if run.run_id in chosen]
        rows = _runs_table(_shown(shown, status), page)
    more = _more(status, len(status.runs) - len(shown))
    return _page(status, page, [*rows, page.paint(more, Style.DIM)], failures)


def _more(status: CampaignStatus, hidden: int) -> str:
    command = f"`{typed('status', status.campaign.name, '--all')}`"
    return f"… and {count(hidden, 'more run')}: {command}" if hidden else f"{command} lists every run"


def _height(lines: Sequence[str], page: Page) -> int:
    width = page.width or sys.maxsize
    rows = (clean(row) for line in lines for row in fold(line, page.width).split("\n"))
    return sum(max(1, ceil(len(row) / width)) for row in rows)


def _runs_table(rows: Sequence[ShownRun], page: Page) -> list[str]:
    return table(page, _HEADER, (_row(row, page) for row in rows), _RIGHT, _DROPPED)


def _condition_row(runs: Sequence[RunStatus], status: CampaignStatus, page: Page) -> list[Cell | str]:
    """A condition with the medians of the newest figures of its runs."""
    done = sum(min(run.step or 0, run.target_step or 0) for run in runs)
    target = sum(run.target_step or 0 for run in runs)
    losses = [run.loss for run in runs if run.loss is not None]
    speeds = [run.tokens_per_s for run in runs if run.tokens_per_s]
    title = status.titles.get(runs[0].condition, runs[0].condition)
    worst = min(runs, key=lambda run: badness(run.state))
    return [
        changed_name(_shortened(title, page), " ".join(run.changes or "" for run in runs).strip()),
        Cell(counts_text(Counter(run.shown for run in runs)), state_cell(state_look(worst.state)).style),
        f"{done / target:.0%}" if all(run.target_step for run in runs) else "",
        figure(median(losses)) if losses else "",
        short_number(median(speeds)) if speeds else "",
    ]


def _shortened(name: str, page: Page) -> str:
    return shorten_middle(name, None if page.width is None else int(page.width * _NAME_SHARE))


def headline(status: CampaignStatus, page: Page) -> str:
    """Name and counts in one line."""
    name = page.paint(status.campaign.name, Style.BOLD)
    return f"{name} · {count(len(status.runs), 'run')}: {counts_text(status.shown_counts, status.counts.early, page)}"


def summary(status: CampaignStatus, page: Page) -> str:
    """Name, counts and the time that is left; of an unsettled campaign also whether failures are retried."""
    notes = [] if status.settled else _footer(status)
    return "\n".join([_first_line(status, page), *(page.paint(note, Style.DIM) for note in notes)])


def _first_line(status: CampaignStatus, page: Page) -> str:
    left = _left_text(status)
    return f"{headline(status, page)}{f' · {left}' if left else ''}"


def _left_text(status: CampaignStatus) -> str:
    """`over about 14:20, 3 h 20 min left with 4 at once`; "" if all is settled."""
    if status.left.seconds is None or status.ends_s is None:
        known = (alone_s := status.left.waiting_s) and f"likely {duration(alone_s)}, one after another, once they start"
        return "" if status.settled else known or "end unknown"
    at_once = f"{status.shown_counts[RunState.RUNNING]} at once"
    return f"over about {near_time(status.ends_s, status.now_s)}, {duration(status.left.seconds)} left with {at_once}"


def notes(status: CampaignStatus) -> list[str]:
    """Return the time left, the causes of failures, and the reconciler with the next command, a line each."""
    failures = (_cause(runs, Page(), 1) for runs in failures_of(status))
    return [*filter(None, [_left_text(status)]), *failures, *_footer(status)]


def _shown(runs: Sequence[RunStatus], status: CampaignStatus) -> list[ShownRun]:
    titles = status.titles if status.campaign.provenance.get("search") else {}
    return [shown_run(run, status, title=titles.get(run.condition, "")) for run in runs]


def _row(row: ShownRun, page: Page) -> list[Cell | str]:
    run = row.run
    figures: dict[str, Cell | str] = {name: FIGURES[name].text(row) for name in _HEADER[2:-2]}
    if row.reduced:
        figures["micro-batch"] = Cell(FIGURES["micro-batch"].text(row), Style.YELLOW)
    name = changed_name(_shortened(numbered(run.name, row.title), page), run.changes)
    return [name, state_cell(row.look()), *figures.values(), run.job_id or "", run.node_list or ""]


def causes(status: CampaignStatus, page: Page, most: int | None = None) -> list[str]:
    """Each cause of failures, or the `most` frequent causes, with the next commands."""
    name, groups = status.campaign.name, failures_of(status)
    lines = [_cause(runs, page, 1 if most else 3) for runs in groups[:most]]
    if rest := groups[most:] if most else []:
        lines += [f"… and {count(sum(map(len, rest)), 'more run')} of {count(len(rest), 'other cause')}"]
    commands = [typed("explain", name, runs[0].name) for runs in groups[: 1 if most else None]]
    commands += [typed("status", name, "--failed")] if most and groups else []
    return [*lines, *(page.paint(f"next: {command}", Style.DIM) for command in commands)]


def _cause(runs: Sequence[RunStatus], page: Page, screen_lines: int) -> str:
    first, number = runs[0], len(runs)
    final = first.failure_class == FailureClass.DETERMINISTIC
    kind = " (not retried)" if final else f", {words(first.failure_class)}" if first.failure_class else ""
    subject = f"{first.name} {first.state}" if number == 1 else f"{number:,} {first.state}{kind}"
    room = None if page.width is None else max(0, screen_lines * page.width - len(subject) - 2)
    style = Style.RED if first.state is RunState.FAILED else Style.YELLOW
    return f"{page.paint(subject, style)}: {shorten(clean(first.reason), room)}"


def _footer(status: CampaignStatus) -> list[str]:
    if status.settled:
        measured = any(run.step is not None for run in status.runs)
        return [f"next: {typed('report', status.campaign.name)}"] if measured else []
    lease, line = status.reconciler, retries_line(status)
    if lease is None or lease.asked_s is None:
        return [line]
    if lease.asked_s > (lease.heard_s or 0.0):
        since = f"for {duration(status.now_s - lease.heard_s)}" if lease.heard_s else "yet"
        return [line, f"Slurm has not answered {since}, so states are out of date: {clean(lease.trouble)}"]
    return [line, *([f"The last pass met a problem: {clean(lease.trouble)}"] if lease.trouble else [])]


def retries_line(status: CampaignStatus) -> str:
    """Whether failures are retried, by whom, and else how to have that."""
    if holder := status.acting:
        return f"retries: on ({holder.shown})"
    if waiting := next(iter((status.queue or {}).items()), None):
        return f"retries: wait for job {waiting[0]} ({waiting[1]})"
    lease = status.reconciler
    if lease and lease.expires_s > status.now_s:
        why = f"the reconciler ({LeaseHolder.parse(lease.holder).shown}) has died"
    else:
        why = _reconciled(status)
    return f"retries: off, {why}; start with `{typed('reconcile', status.campaign.name, '--detach')}`"


def age_text(status: CampaignStatus) -> str:
    """`sweep: reconciled 2 min ago`, with the next command; "" if all is settled or a reconciler is active."""
    if status.settled or status.acting:
        return ""
    return f"{status.campaign.name}: {_reconciled(status)}; next: {typed('reconcile', status.campaign.name)}"


def _reconciled(status: CampaignStatus) -> str:
    if status.reconciler is None or status.reconciler.asked_s is None:
        return "not reconciled yet"
    age_s = status.now_s - status.reconciler.asked_s
    return f"reconciled {'just now' if age_s < 10 else f'{duration(age_s)} ago'}"
