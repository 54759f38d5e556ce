"""Answers and comparisons for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.formatting import clean, count, words
from dscampaign.orchestrator.report.compare.answer import Row
from dscampaign.orchestrator.report.compare.difference import ComparedOperands, Comparison, Limit, figures, verdict
from dscampaign.orchestrator.report.compare.results import UNCONFIRMED, Results, WorkloadResults
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.compare.wording import difference_text, places, times
from dscampaign.orchestrator.spec.objective import Objective

from .text import Page, Style, table

_ROWS: Final = 12
"""More conditions than this are left to the report."""


def answers_page(results: Results, page: Page) -> str:
    """For each workload the answer and its conditions, best first."""
    if not results.workloads:
        return f"{UNCONFIRMED}\nnext: {typed('report', results.campaign.name)}"
    effort = results.effort if len(results.workloads) == 1 else ""
    parts = ["\n".join(_answer(workload, results.campaign.name, page, effort)) for workload in results.workloads]
    parts += [page.paint(results.effort, Style.DIM)] if results.effort and not effort else []
    if any(workload.answer.undecided for workload in results.workloads):
        command = f"next: {typed('recommend', results.campaign.name, '--by', 'loss')}   (or --by speed)"
        parts.append(page.paint(command, Style.DIM))
    return "\n\n".join(parts)


def comparison_page(compared: ComparedOperands, page: Page, limits: Sequence[Limit] = ()) -> str:
    """Each comparison: the differences, the figures, the verdict; then conditions without a counterpart."""
    alone = [f"Only in {campaign}: {', '.join(names)}." for campaign, names in compared.alone]
    return "\n\n".join([*("\n".join(_comparison(pair, page, limits)) for pair in compared.comparisons), *alone])


def _answer(results: WorkloadResults, campaign: str, page: Page, effort: str) -> Iterator[str]:
    answer = results.answer
    if results.workload.name:
        yield page.paint(clean(results.workload.name), Style.BOLD)
    yield page.paint(clean(answer.sentence), Style.BOLD)
    if effort:
        yield page.paint(effort, Style.DIM)
    yield ""
    score = "" if answer.lead in (Objective.SPEED, Objective.LOSS, Objective.MEMORY) else str(answer.lead)
    shown, loss = answer.rows[:_ROWS], answer.rows[0].comparison.loss_heading
    digits = places([row.loss for row in shown], shown[0].comparison.loss_unit)
    header: tuple[str, ...] = ("condition", score, "speed vs best", "memory", loss, "verdict")
    rows = [_row(row, score, digits) for row in shown]
    if answer.lead is Objective.LOSS:
        header = ("condition", loss, "speed vs best", "memory", score, "verdict vs best")
        losses = [_loss_beside_best(row, digits) for row in shown]
        rows = [(cells[0], own, *cells[2:4], "", cells[5]) for cells, own in zip(rows, losses, strict=True)]
    yield from table(page, header, rows, "-rrrrw", capitals=False)
    if (hidden := len(answer.rows) - _ROWS) > 0:
        yield page.paint(f"… and {count(hidden, 'more condition')}: `{typed('report', campaign)}`", Style.DIM)
    notes = [clean(reason.text) for reason in (*answer.doubts, *answer.remarks)]
    notes += [clean(results.basis)] if len(answer.rows) > 1 else []
    yield from ("", *notes) if notes else ()


def _row(row: Row, score: str, digits: int) -> tuple[str, ...]:
    pair = row.comparison
    return (
        clean(row.condition.title),
        row.figure if score else "",
        f"{times(row.beside_best)} ×" if row.beside_best else "",
        row.condition.text("mem_reserved_gb"),
        "baseline" if pair.is_baseline else difference_text(pair.loss, pair.loss_unit, ends=False, digits=digits),
        f"out: {clean(row.why.text)}" if row.why else words(row.verdict),
    )


def _loss_beside_best(row: Row, digits: int) -> str:
    if row.verdict in (Standing.BEST, Standing.FIRST):
        return "–"
    test = row.loss_beside_best
    return difference_text(test, row.comparison.loss_unit, digits=digits) if test else ""


def _comparison(comparison: Comparison, page: Page, limits: Sequence[Limit]) -> Iterator[str]:
    if comparison.shared:
        yield page.paint(clean(comparison.shared), Style.BOLD)
    left, right = map(clean, comparison.titles)
    if left == right:
        left, right = f"{left} (A)", f"{right} (B)"
    for name, rows in (("configuration", comparison.differences), ("figure (median)", figures(comparison))):
        if rows:
            cells = [tuple(map(clean, row)) for row in rows]
            yield from table(page, (name, left, right), cells, "" if name == "configuration" else "-rr", capitals=False)
            yield ""
    yield from verdict(comparison)
    for check in comparison.checks(limits):
        yield page.paint(f"{check.limit.text} {check.outcome}: {check.reason}.", Style.BOLD)
