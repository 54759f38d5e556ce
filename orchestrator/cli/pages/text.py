"""Text for a terminal: colour that can be switched off, tables that line up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ...formatting import shorten

_GAP: Final = "  "
_LEAST: Final = 8
"""Characters of a text that is cut which are worth a column."""


class Style(StrEnum):
    """What a piece of text is, as the parameters of a terminal's escape sequence."""

    PLAIN = ""
    BOLD = "1"
    DIM = "2"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"
    CYAN = "36"


@dataclass(frozen=True)
class Page:
    """How text is shown: with or without colour, and cut to `width` columns; None for a file or a pipe."""

    colour: bool = False
    width: int | None = None

    def paint(self, text: str, style: Style) -> str:
        """The text in its style."""
        return f"\x1b[{style}m{text}\x1b[0m" if self.colour and style and text.strip() else text


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    style: Style = Style.PLAIN


def table(
    page: Page,
    header: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    right: str = "",
    drop: Sequence[str] = (),
    *,
    capitals: bool = True,
) -> list[str]:
    """Lines of a table; columns that are empty in every row are left out, a last one without a name is cut to fit.

    Args:
        right: for each column `r` where its cells are numbers, else any other character.
        drop: names of columns to leave out, one after the other, until no cell needs to be cut.
        capitals: whether the names of columns, being this program's own words, are shown in capitals.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    used = [i for i in range(len(header)) if any(row[i].text for row in cells)]
    widths = {i: max(len(header[i]), *(len(row[i].text) for row in cells)) for i in used}
    used = _fitting(used, header, widths, page.width, drop)
    lines = [[Cell(name.upper() if capitals else name, Style.DIM) for name in header], *cells]
    cut = bool(used) and not header[used[-1]]
    return [_line(page, [(line[i], widths[i], right[i : i + 1] == "r") for i in used], cut) for line in lines]


def _fitting(
    used: list[int], header: Sequence[str], widths: dict[int, int], width: int | None, drop: Sequence[str]
) -> list[int]:
    """The columns that fit; of a last one without a name, the beginning is enough."""
    for name in drop:
        needed = (min(widths[i], _LEAST) if not header[i] else widths[i] for i in used)
        if width is None or sum(needed) + len(_GAP) * (len(used) - 1) <= width:
            break
        used = [i for i in used if header[i] != name]
    return used


def _line(page: Page, cells: Sequence[tuple[Cell, int, bool]], cut: bool) -> str:
    painted, room = [], page.width
    for index, (cell, width, right) in enumerate(cells):
        text = cell.text.rjust(width) if right else cell.text.ljust(width)
        if cut and index == len(cells) - 1:
            text = shorten(text.rstrip(), room)
        painted.append(page.paint(text, cell.style))
        room = None if room is None else max(0, room - width - len(_GAP))
    return _GAP.join(painted).rstrip()
