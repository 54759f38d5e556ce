"""What a page is made of, whatever it is written in. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dscampaign.orchestrator.formatting import clean


@dataclass(frozen=True)
class Table:
    """A table of text; `right` has an `r` for each column whose cells are numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: str = ""

    def without_empty_columns(self) -> Table:
        """The table without columns that are empty in every row; the first always stays."""
        used = [i for i in range(len(self.header)) if i == 0 or any(row[i] for row in self.rows)]
        right = self.right.ljust(len(self.header), "-")
        return Table(
            tuple(self.header[i] for i in used),
            tuple(tuple(clean(row[i]) for i in used) for row in self.rows),
            "".join(right[i] for i in used),
        )


@dataclass(frozen=True)
class Picture:
    """A figure where it is shown; `name` is that of its file, without the ending."""

    name: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it: figures, if they were drawn, and code, shown as it is.

    ``lead`` is read before anything else, of each group the first sentence first; where ``tables_first``, tables come
    next. What is ``folded`` is opened by who wants it.
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Picture, ...] = ()
    code: str = ""
    folded: bool = False
    lead: tuple[tuple[str, ...], ...] = ()
    tables_first: bool = False
