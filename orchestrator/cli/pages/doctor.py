"""The page of `campaign doctor`: a table for each place, with advice under each row that is not ok."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from dscampaign.orchestrator.doctor.check import Check, Severity
from dscampaign.orchestrator.formatting import clean, count

from .text import Cell, Page, Style, table

_STYLES: Final = {
    Severity.OK: Style.GREEN,
    Severity.NOTE: Style.CYAN,
    Severity.WARNING: Style.YELLOW,
    Severity.PROBLEM: Style.RED,
}
_INDENT: Final = " " * 9


def doctor_page(checks: Sequence[Check], page: Page) -> str:
    """All checks, and how many there are: `Doctor: 1 problem, 2 warnings, 1 note, 18 ok`."""
    lines: list[str] = []
    for where in dict.fromkeys(check.where for check in checks):
        lines += [page.paint(where, Style.BOLD), *_rows([c for c in checks if c.where == where], page), ""]
    numbers = Counter(check.verdict for check in checks)
    parts = [count(numbers[verdict], verdict) for verdict in (Severity.PROBLEM, Severity.WARNING, Severity.NOTE)]
    summary = ", ".join([*(part for part in parts if not part.startswith("0 ")), f"{numbers[Severity.OK]} ok"])
    return "\n".join([*lines, f"{page.paint('Doctor:', Style.BOLD)} {summary}"])


def doctor_document(checks: Sequence[Check]) -> dict[str, Any]:
    """The checks as one document for `--json`."""
    numbers = Counter(check.verdict for check in checks)
    return {
        "counts": {verdict.value: numbers[verdict] for verdict in Severity},
        "checks": [
            {"id": c.id, "where": c.where, "verdict": c.verdict.value, "seen": c.seen, "next": c.next or None}
            for c in checks
        ],
    }


def _rows(checks: Sequence[Check], page: Page) -> Iterator[str]:
    rows: list[list[Cell | str]] = [
        [Cell(c.verdict.value.ljust(7), _STYLES[c.verdict]), c.id, clean(c.seen)] for c in checks
    ]
    _, *lines = table(Page(page.colour), ("verdict", "check", "seen"), rows)  # nothing is cut: it is all to be read
    for check, line in zip(checks, lines, strict=True):
        yield line
        if check.next:
            yield f"{_INDENT}{page.paint('next:', Style.CYAN)} {clean(check.next)}"
