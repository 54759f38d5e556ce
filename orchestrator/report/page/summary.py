"""The first screen: a sentence, a table with the winner first, and a chart. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dscampaign.orchestrator.formatting import words
from dscampaign.orchestrator.report.compare.answer import Row
from dscampaign.orchestrator.report.compare.results import UNCONFIRMED, Results
from dscampaign.orchestrator.report.compare.statistics import Estimate, Standing
from dscampaign.orchestrator.report.compare.wording import difference_text, places, times
from dscampaign.orchestrator.spec.objective import Objective

from . import charts
from .elements import Chart, Section, TableCell, table
from .looks import Looks
from .questions import axis_charts, curves, named, of_workload

MOST_ROWS: Final = 6
_BEST: Final = (Standing.BEST, Standing.FIRST)
_GOOD: Final = (*_BEST, Standing.FASTEST, Standing.LOWEST_LOSS)


def summary(results: Results, looks: Looks) -> Section:
    """Return the first screen; of several workloads the table has the names."""
    if not results.workloads:
        return Section(UNCONFIRMED)
    several = len(results.workloads) > 1
    shown = results.workloads[:MOST_ROWS]
    loss_leads = all(one.answer.lead is Objective.LOSS for one in results.workloads)
    rows = [row for one in shown for row in one.answer.rows]
    leading = [found for row in rows if (found := _leading(row, loss_leads=loss_leads))]
    differ = loss_leads or len({f"{found.value:.2f}" for found in leading}) > 1
    last = max((found.high or found.value for found in leading), default=0.0) if differ else 0.0
    digits = places([row.loss for row in rows], rows[0].comparison.loss_unit)
    lines: list[tuple[TableCell, ...]] = []
    for one in shown:
        if several:
            lines.append((TableCell(f"{one.workload.name}: {one.answer.sentence}", mark="group"),))
        every, most = one.answer.rows, max(1, MOST_ROWS // len(shown))
        baseline = next(place for place, row in enumerate(every) if row.comparison.is_baseline)
        kept = every[:most] if baseline < most or most < 2 else [*every[: most - 1], every[baseline]]
        lines += (_row(row, looks, last, digits, loss_leads=loss_leads) for row in kept)
    more = len(results.comparisons) - sum(len(line) > 1 for line in lines)
    sentence = f"{len(results.workloads)} workloads, each with its answer." if several else shown[0].answer.sentence
    loss = rows[0].comparison.loss_heading
    last_two = ("memory", "verdict vs best") if loss_leads else ("memory", loss, "verdict")
    header = ("condition", *((loss,) if loss_leads else ()), "speed vs best", *last_two)
    answers = table(header, lines, more=more, file="the tables below")
    chart = _chart(results, looks)
    return Section(sentence, results.effort, charts=(chart,) if chart else (), tables=(answers,))


def _leading(row: Row, *, loss_leads: bool) -> Estimate | None:
    if loss_leads:
        return row.loss_beside_best.difference if row.loss_beside_best else None
    return row.beside_best


def _row(row: Row, looks: Looks, last: float, digits: int, *, loss_leads: bool) -> tuple[TableCell, ...]:
    one, speed, found = row.comparison, row.beside_best, _leading(row, loss_leads=loss_leads)
    pace = TableCell(f"{speed.value:.2f} ×", tip=times(speed)) if speed else TableCell("")
    test, known = (row.loss_beside_best, row.verdict not in _BEST) if loss_leads else (one.loss, not one.is_baseline)
    loss = TableCell("–" if test else "")
    if test and known:
        loss = TableCell(difference_text(test, one.loss_unit, ends=loss_leads, digits=digits))
    first, second = (replace(loss, mark="gap"), pace) if loss_leads else (pace, loss)
    if found and last > 0:
        ends = found.ends or (found.value, found.value)
        value, low, high = (max(0.0, end / last) for end in (found.value, *ends))
        first = replace(first, bar=(value, low, high), colour=looks[row.condition.name].colour)
    memory = TableCell(row.condition.text("mem_reserved_gb"))
    return (
        named(row.condition, looks, is_baseline=one.is_baseline),
        *((first, second, memory) if loss_leads else (first, memory, second)),
        TableCell(f"out: {row.why.label}", mark="out")
        if row.why
        else TableCell(words(row.verdict), mark="best" if row.verdict in _GOOD else ""),
    )


def _chart(results: Results, looks: Looks) -> Chart | None:
    """The chart of what decides: the loss if it leads, else speed against memory."""
    one, several = results.workloads[0], len(results.workloads)
    loss_leads = one.answer.lead is Objective.LOSS
    if loss_leads and (chart := next(axis_charts(results, looks), None)):
        return chart
    chart = None if loss_leads else charts.trade_off(one, looks)
    chart = chart or charts.losses(curves(one, looks, several), looks, one.comparisons[0].loss_unit and " (nats)")
    return of_workload(chart, one, 1, several) if chart else None
