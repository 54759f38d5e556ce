"""The summary of a large plan: runs by sign and by axis, and the rows that are not like all others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dscampaign.orchestrator.campaign.plan import Plan, PlannedRun, Sign, most_gpu_hours
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.spec.run_names import value_slug

from .text import Cell, Page, Style, table

ROWS_AT_MOST: Final = 60
"""A plan of more runs is summed up, unless somebody asks for all of them."""

SPECIAL_AT_MOST: Final = 20
_VALUES_NAMED: Final = 4


def summed_up(plan: Plan, page: Page, styles: Mapping[Sign, Style]) -> list[list[str]]:
    """How many runs there are of each sign and of each value of each axis."""
    signs = table(page, ("", "runs", "gpu-hours", "first", "last"), list(_signs(plan, styles)), "-rr--")
    return [signs, table(page, ("axis", "values", "", "runs of each"), list(_axes(plan)), "-r-r")]


def special(plan: Plan) -> list[PlannedRun]:
    """The rows that somebody should see: all that does not simply start, or go on as it is."""
    return [item for item in plan.runs if _is_special(item)]


def _is_special(item: PlannedRun) -> bool:
    warned = bool(item.changes or item.needs.shortage or item.differing)
    return warned or item.sign in (Sign.RESUBMIT, Sign.CANCEL)


def _signs(plan: Plan, styles: Mapping[Sign, Style]) -> Iterator[list[Cell | str]]:
    for sign in Sign:
        items = [item for item in plan.runs if item.sign is sign]
        if not items:
            continue
        runs = [item.run for item in items if item.run]
        hours = sum(map(most_gpu_hours, runs)) if plan.executor == "slurm" and sign is not Sign.KEEP else 0.0
        last = items[-1].name if len(items) > 1 else ""
        yield [Cell(sign, styles[sign]), f"{len(items):,}", f"{hours:,.0f}" if hours else "", items[0].name, last]


def _axes(plan: Plan) -> Iterator[list[Cell | str]]:
    """`lr  3  0.001, 0.01, 0.1  4,000`; the fewest and the most runs, if the values have not equally many."""
    points = [item.run.params for item in plan.runs if item.run]
    for name in dict.fromkeys(name for point in points for name in point):
        runs = Counter(value_slug(point[name]) for point in points if name in point)
        fewest, most = min(runs.values()), max(runs.values())
        each = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
        yield [clean(name), f"{len(runs):,}", _named(list(runs)), each]


def _named(values: Sequence[str]) -> str:
    """`0, 1, 2 … 99`."""
    if len(values) <= _VALUES_NAMED:
        return ", ".join(values)
    return f"{', '.join(values[: _VALUES_NAMED - 1])} … {values[-1]}"
