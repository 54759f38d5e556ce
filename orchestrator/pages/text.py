"""Text for a terminal: colour that can be switched off, tables that line up."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from math import inf
from typing import Final

_GAP: Final = "  "
_LEAST: Final = 11
"""Characters that a column of text keeps at least."""

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")

_UNIT = re.compile(r"\s*(?:(?:\x1b\[\d+m)?next: .*|[^\s`]*(?:`[^`]*`[^\s`]*)+|\S+)")
"""A part of a line that is never broken: commands are pasted."""

_BLANK: Final = "\0"
"""Stands for a blank at which no line may break."""


class Style(StrEnum):
    """The style of a piece of text, as the parameters of a terminal's escape sequence."""

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


PLAIN: Final = Page()
"""For a file or a pipe."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    style: Style = Style.PLAIN


def fold(text: str, width: int | None, hanging: int | None = None) -> str:
    """Continue long lines below themselves; commands stay in a single piece, so that they can be pasted.

    They are indented by `hanging` columns, by default two more than the line itself.
    """
    return text if width is None else "\n".join(_folded(line, width, hanging) for line in text.split("\n"))


def _folded(line: str, width: int, hanging: int | None) -> str:
    if _visible(line) <= width:
        return line
    plain = _ESCAPE.sub("", line)
    indent = len(plain) - len(plain.lstrip(" ")) + 2 if hanging is None else hanging
    rows = [""]
    for unit in _UNIT.findall(line):
        if _visible(rows[-1]) and _visible(rows[-1] + unit) > width:
            rows.append(" " * indent + unit.lstrip())
        else:
            rows[-1] += unit
    return "\n".join(rows)


def _visible(text: str) -> int:
    return len(_ESCAPE.sub("", text))


def table(
    page: Page,
    header: Sequence[str],
    rows: Iterable[Sequence[Cell | str]],
    right: str = "",
    drop: Sequence[str] = (),
    *,
    capitals: bool = True,
) -> list[str]:
    """Return the lines of a table, without the columns that are empty in every row.

    On a narrow page the columns of `drop` are left out, in this order, and text is continued within its column. `right`
    has for each column `r` for numbers, `w` for text that is continued before other columns are left out, else any
    other character.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    used = [i for i in range(len(header)) if any(row[i].text for row in cells)]
    if not used:
        return []
    kinds = right.ljust(len(header))
    widths = {i: max(len(header[i]), *(len(row[i].text) for row in cells)) for i in used}
    for name in drop:
        if _total(min(widths[i], _LEAST) if kinds[i] == "w" else widths[i] for i in used) <= (page.width or inf):
            break
        used = [i for i in used if header[i] != name]
    titles = [Cell(name.upper() if capitals else name, Style.DIM) for name in header]
    lines = [[line[i] for i in used] for line in (titles, *cells)]
    sizes, numbers = [widths[i] for i in used], [kinds[i] == "r" for i in used]
    if page.width is not None:
        least = [
            max(len(row[i].text) for row in cells) if number else _LEAST
            for i, number in zip(used, numbers, strict=True)
        ]
        while _total(sizes) > page.width and (wide := [i for i, size in enumerate(sizes) if size > least[i]]):
            sizes[max(wide, key=sizes.__getitem__)] -= 1  # take from the widest until the table fits
        lines = [
            [Cell(text, cell.style) for text, cell in zip(texts, line, strict=True)]
            for line in lines
            for texts in zip_longest(*map(_cell_lines, line, sizes), fillvalue="")
        ]
    padded = sizes if numbers[-1] else [*sizes[:-1], 0]
    return [
        _GAP.join(
            page.paint(cell.text.rjust(size) if number else cell.text.ljust(size), cell.style)
            for cell, size, number in zip(line, padded, numbers, strict=True)
        ).rstrip()
        for line in lines
    ]


def _total(widths: Iterable[int]) -> int:
    return sum(width + len(_GAP) for width in widths) - len(_GAP)


def _cell_lines(cell: Cell, width: int) -> list[str]:
    if len(cell.text) <= width:
        return [cell.text]
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", _BLANK), cell.text)
    return [part.replace(_BLANK, " ") for part in textwrap.wrap(whole, width, break_on_hyphens=False)]


def changed_name(name: str, changes: str | None) -> str:
    """The name of the run, with a mark if it was changed to fit into memory."""
    return f"{name} *" if changes else name


def changed_line(name: str, changes: str) -> str:
    """The meaning of the mark."""
    return f"* {name} was changed so that it fits into memory: {', '.join(changes.split())}"
