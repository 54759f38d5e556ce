"""Recommendations and comparisons for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...formatting import clean
from ...report.compare.difference import ComparedOperands, Comparison, verdict
from ...report.compare.results import Results, WorkloadResults
from ...report.page.elements import Table
from ...report.page.tables import comparison_tables
from .text import Page, Style, table


def recommendation_page(results: Results, configs: Mapping[str, str], page: Page) -> str:
    """For each workload why not the others, what to use, and its configuration where one is given."""
    return "\n\n".join("\n".join(_recommendation(one, configs, page)) for one in results.workloads)


def comparison_page(compared: ComparedOperands, page: Page) -> str:
    """Each comparison: what differs, the figures, what they show; then what has nothing beside it."""
    alone = [f"Only in {campaign}: {', '.join(names)}." for campaign, names in compared.alone]
    return "\n\n".join([*("\n".join(_comparison(one, page)) for one in compared.comparisons), *alone])


def _recommendation(one: WorkloadResults, configs: Mapping[str, str], page: Page) -> Iterator[str]:
    said = one.recommendation
    if one.workload.name:
        yield page.paint(clean(one.workload.name), Style.BOLD)
    if said.excluded:
        yield from _lines(Table(("not considered", "because"), tuple(said.excluded.items())), page)
        yield ""
    yield clean(said.sentence)
    if len(said.front) > 1:
        yield f"Pareto-optimal in speed, memory and energy: {', '.join(said.front)}."
    yield from (clean(sentence) for sentence in said.advice)
    if said.chosen and said.chosen.name in configs:
        yield ""
        yield page.paint(f"DeepSpeed configuration of {said.chosen.name}", Style.DIM)
        yield configs[said.chosen.name]


def _comparison(one: Comparison, page: Page) -> Iterator[str]:
    for part in comparison_tables(one):
        yield from _lines(part, page, capitals=False)
        yield ""
    yield from verdict(one)


def _lines(shown: Table, page: Page, *, capitals: bool = True) -> list[str]:
    used = shown.without_empty_columns()
    return table(page, used.header, used.rows, used.right, capitals=capitals)
