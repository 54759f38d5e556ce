"""What a page is made of, whatever it is written in. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ...formatting import clean


@dataclass(frozen=True)
class Table:
    """A table of text. Columns that are empty in every row are left out.

    Attributes:
        right: of each column, ``r`` where its cells are numbers.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: str = ""

    def without_empty_columns(self) -> Table:
        """The table without columns that are empty in every row; the first one always stays."""
        used = [i for i in range(len(self.header)) if i == 0 or any(row[i] for row in self.rows)]
        right = self.right.ljust(len(self.header), "-")
        return Table(
            tuple(self.header[i] for i in used),
            tuple(tuple(clean(row[i]) for i in used) for row in self.rows),
            "".join(right[i] for i in used),
        )


@dataclass(frozen=True)
class Picture:
    """A figure where it is shown.

    Attributes:
        name: of its file, without the ending.
        caption: what a reader has to know of it.
    """

    name: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it.

    Attributes:
        figures: those that belong here, where they were drawn.
        code: text that is shown as it is.
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Picture, ...] = ()
    code: str = ""
