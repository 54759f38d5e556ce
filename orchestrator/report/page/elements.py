"""The parts of a page, for any format. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from dscampaign.orchestrator.formatting import clean

MAIN_COLUMNS: Final = 7
"""A table shows so many columns at first."""

MOST_ROWS: Final = 120
"""Rows of a table; a data file has all."""

_NUMBER: Final = re.compile(r"[-+−]?\d[\d,.]*(e[-+]?\d+)?( ?[%×\w/°]+)?( \[.*\])?|NaN|–|")

T = TypeVar("T")


@dataclass(frozen=True)
class TableCell:
    """A cell of a table.

    Attributes:
        value: a number to sort by; without it the text counts.
        note: a word behind the text.
        tip: the technical name, or the whole text.
        colour: number of the colour of the condition; None for other cells.
        bar: value, low and high end as parts of the longest bar; equal ends without an interval.
        mark: a class of the style sheet.
    """

    text: str
    value: float | None = None
    note: str = ""
    tip: str = ""
    colour: int | None = None
    bar: tuple[float, float, float] | None = None
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        right: an `r` for each column of numbers, else a `-`.
        main: number of columns that are shown at first.
        more: number of further rows, which only the data files have.
        file: the data file with all rows and columns.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    right: str
    main: int
    more: int
    file: str


def table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], *, main: int = MAIN_COLUMNS, more: int = 0, file: str = ""
) -> Table:
    """Return a table of cells or texts, without the columns that are empty in every row but the first column.

    A row of a single cell is a heading.
    """
    cells = [[each if isinstance(each, TableCell) else TableCell(str(each)) for each in row] for row in rows]
    whole = [row for row in cells if len(row) > 1 or len(header) == 1]
    used = [place for place in range(len(header)) if place == 0 or any(row[place].text for row in whole)]
    numbers = [place > 0 and all(_NUMBER.fullmatch(row[place].text) for row in whole) for place in used]
    return Table(
        header=tuple(header[place] for place in used),
        rows=tuple(tuple(replace(row[i], text=clean(row[i].text)) for i in used[: len(row)]) for row in cells),
        right="".join("r" if is_number else "-" for is_number in numbers),
        main=min(main, len(used)),
        more=more,
        file=file,
    )


def table_of(
    columns: Mapping[str, Callable[[T], Any]], items: Sequence[T], *, main: int = MAIN_COLUMNS, file: str = ""
) -> tuple[Table, ...]:
    """Return a table with a row for each item, if there are any; of too many items, a file has the others."""
    rows = [[cell(item) for cell in columns.values()] for item in items[:MOST_ROWS]]
    more = max(0, len(items) - MOST_ROWS)
    return (table(tuple(columns), rows, main=main, more=more, file=file),) if rows else ()


@dataclass(frozen=True)
class Chart:
    """A chart.

    By name, `across` has the text of each x axis that a reader can choose; it is empty without a choice.
    """

    name: str
    title: str
    spec: Mapping[str, Any]
    across: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A question with its answer: a sentence, small multiples of a chart, tables, and code as it is.

    A `folded` section has details that few readers need.
    """

    title: str
    text: str = ""
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    folded: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether it has nothing to show."""
        return not (self.charts or self.tables or self.code)
