"""Recommendations and comparisons for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.formatting import clean, some
from dscampaign.orchestrator.report.compare.advice import unread_config
from dscampaign.orchestrator.report.compare.difference import ComparedOperands, Comparison, verdict
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.page.elements import Table
from dscampaign.orchestrator.report.page.summary import answer_table, next_best
from dscampaign.orchestrator.report.page.tables import comparison_tables

from .text import Page, Style, table

_SAME_ROWS = 20
"""More conditions than this that are out for the same reason share a row."""


def recommendation_page(results: Results, configs: Mapping[str, str] | None, page: Page) -> str:
    """For each workload the recommendation and the excluded conditions; with `configs`, its configuration too."""
    shown = ["\n".join(_recommendation(one, configs, page)) for one in results.workloads]
    if len(results.workloads) > 1:
        shown.append("\n".join(_lines(answer_table(results.workloads), page)))
    if any(one.recommendation.undecided for one in results.workloads):
        command = f"next: {typed('recommend', results.campaign.name, '--by', 'loss')}   (or --by speed)"
        shown[-1] += f"\n{page.paint(command, Style.DIM)}"
    return "\n\n".join(shown)


def comparison_page(compared: ComparedOperands, page: Page) -> str:
    """Each comparison: the differences, the figures, the verdict; then conditions without a counterpart."""
    alone = [f"Only in {campaign}: {', '.join(names)}." for campaign, names in compared.alone]
    return "\n\n".join([*("\n".join(_comparison(one, page)) for one in compared.comparisons), *alone])


def _recommendation(one: WorkloadResults, configs: Mapping[str, str] | None, page: Page) -> Iterator[str]:
    said = one.recommendation
    if one.workload.name:
        yield page.paint(clean(one.workload.name), Style.BOLD)
    if said.excluded:
        yield from _lines(Table(("not considered", "because"), tuple(_alike(said.excluded))), page)
        yield ""
    yield clean(said.sentence)
    if said.answer and said.answer.runner_up:
        yield clean(next_best(said.answer))
    if said.trade_off:
        yield said.trade_off
    yield from (clean(sentence) for sentence in (*said.advice, *said.effects))
    if configs is None or said.chosen is None:
        return
    if unread := unread_config(said.chosen):
        yield unread
    if said.chosen.name in configs:
        yield ""
        yield page.paint(f"DeepSpeed configuration of {said.chosen.name}", Style.DIM)
        yield configs[said.chosen.name]


def _alike(excluded: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Conditions with the reason for their exclusion; very many with the same reason share a row."""
    names: dict[str, list[str]] = {}
    for name, why in excluded.items():
        names.setdefault(why, []).append(name)
    for name, why in excluded.items():
        same = names[why]
        if len(same) <= _SAME_ROWS:
            yield name, why
        elif name == same[0]:
            yield some(same, 2), why


def _comparison(one: Comparison, page: Page) -> Iterator[str]:
    for part in comparison_tables(one):
        yield from _lines(part, page, capitals=False)
        yield ""
    yield from verdict(one)


def _lines(shown: Table, page: Page, *, capitals: bool = True) -> list[str]:
    used = shown.without_empty_columns()
    return table(page, used.header, used.rows, used.right, capitals=capitals)
