"""The parts of a page, for any format. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dscampaign.orchestrator.formatting import clean

MAIN_COLUMNS: Final = 7
"""A table shows so many columns at first."""


@dataclass(frozen=True)
class Cell:
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
        right: an `r` for each column of numbers.
        main: number of columns that are shown at first.
        more: number of further rows, which only the data files have.
        file: the data file with all rows and columns.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: str = ""
    main: int = MAIN_COLUMNS
    more: int = 0
    file: str = ""

    def without_empty_columns(self) -> Table:
        """The table without columns that are empty in every row; the first, and rows of a single cell, always stay."""
        used = [i for i in range(len(self.header)) if i == 0 or any(row[i].text for row in self.rows if len(row) > 1)]
        right = self.right.ljust(len(self.header), "-")
        rows = tuple(tuple(replace(row[i], text=clean(row[i].text)) for i in used[: len(row)]) for row in self.rows)
        main = sum(i < self.main for i in used) if self.main < len(self.header) else len(used)
        return replace(
            self,
            header=tuple(self.header[i] for i in used),
            rows=rows,
            right="".join(right[i] for i in used),
            main=max(main, min(MAIN_COLUMNS, len(used))),
        )


def table_of(header: tuple[str, ...], rows: Any, right: str = "", **more: Any) -> Table:
    """Return a table of cells or texts."""
    cells = tuple(tuple(each if isinstance(each, Cell) else Cell(str(each)) for each in row) for row in rows)
    return Table(header, cells, right, **more)


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        name: of its files.
        title: the text above it.
        spec: Vega-Lite.
        across: by name, the text of each x axis that a reader can choose; empty without a choice.
    """

    name: str
    title: str
    spec: Mapping[str, Any]
    across: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A question with its answer: a sentence, small multiples of a chart, tables, and code as it is.

    A `folded` section has details for those who look for them.
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
