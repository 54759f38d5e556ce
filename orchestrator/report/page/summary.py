"""The first screen: a sentence, a table with the winner first, and a chart. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from dscampaign.orchestrator.formatting import some, words
from dscampaign.orchestrator.report.compare.answer import Row
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.compare.statistics import Standing
from dscampaign.orchestrator.report.compare.wording import difference, times
from dscampaign.orchestrator.spec.objective import Objective

from . import charts
from .elements import Cell, Chart, Section, table
from .looks import Looks
from .questions import axis_charts, curves, named, of_workload

MOST_ROWS: Final = 6
_HEADER: Final = ("condition", "speed vs best", "memory", "loss vs baseline", "verdict")
_GOOD: Final = (Standing.BEST, Standing.FIRST, Standing.FASTEST, Standing.LOWEST_LOSS)


def summary(results: Results, looks: Looks) -> Section:
    """Return the first screen; of several workloads the table has the names."""
    several = len(results.workloads) > 1
    shown = results.workloads[:MOST_ROWS]
    lines: list[tuple[Cell, ...]] = []
    for one in shown:
        if several:
            lines.append((Cell(one.workload.name, mark="group"),))
        lines += _rows(one, looks, max(1, MOST_ROWS // len(shown)))
    more = len(results.comparisons) - sum(len(line) > 1 for line in lines)
    sentence = _ahead(results.workloads) if several else shown[0].answer.sentence
    answers = table(_HEADER, lines, more=more, file="the tables below")
    chart = _chart(results, looks)
    return Section(sentence, charts=(chart,) if chart else (), tables=(answers,))


def _ahead(workloads: Sequence[WorkloadResults]) -> str:
    """Name the first condition of each workload."""
    first = [
        one.answer.rows[0].condition.title if one.answer.learner else f"nothing for {one.workload.name}"
        for one in workloads
    ]
    verb = "Use" if all(one.answer.proven for one in workloads) else "Ahead"
    return f"{verb}, by workload: {some(first, 3)}."


def _rows(one: WorkloadResults, looks: Looks, most: int) -> Iterator[tuple[Cell, ...]]:
    """Yield the best conditions, and the baseline in any case."""
    rows = one.answer.rows
    last = max((row.beside_best.high or row.beside_best.value for row in rows if row.beside_best), default=1.0)
    baseline = next(place for place, row in enumerate(rows) if row.comparison.is_baseline)
    kept = rows[:most] if baseline < most or most < 2 else [*rows[: most - 1], rows[baseline]]
    yield from (_row(row, looks, last) for row in kept)


def _row(row: Row, looks: Looks, last: float) -> tuple[Cell, ...]:
    one, speed = row.comparison, row.beside_best
    bar = None
    if speed:
        low, high = (speed.value, speed.value) if speed.low is None or speed.high is None else (speed.low, speed.high)
        bar = (speed.value / last, low / last, high / last)
    loss = None if one.is_baseline else one.loss.difference
    return (
        named(row.condition, looks, is_baseline=one.is_baseline),
        Cell(f"{speed.value:.2f} ×", bar=bar, colour=looks[row.condition.name].colour, tip=times(speed))
        if speed
        else Cell(""),
        Cell(row.condition.text("mem_reserved_gb")),
        Cell(difference(loss.value, one.loss, one.loss_unit) if loss else "–" if one.is_baseline else ""),
        Cell(row.why.label if row.why else words(row.verdict), mark="best" if row.verdict in _GOOD else ""),
    )


def _chart(results: Results, looks: Looks) -> Chart | None:
    """The chart of what decides: the loss if it leads, else speed against memory."""
    one, several = results.workloads[0], len(results.workloads)
    loss_leads = one.answer.lead is Objective.LOSS
    found = next(axis_charts(results, looks), None) if loss_leads else None
    if found:
        return found
    found = None if loss_leads else charts.trade_off(one, looks) or charts.speeds(one, looks)
    found = found or charts.losses(curves(one, looks, several), looks, "")
    return of_workload(found, one, 1, several) if found else None
