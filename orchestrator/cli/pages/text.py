"""Text for a terminal: colour that can be switched off, tables that line up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dscampaign.orchestrator.formatting import shorten

_GAP: Final = "  "
_LEAST: Final = 11
"""Characters of a text that is cut which are worth a column."""

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*m")

_QUOTED: Final = r"[^\s`]*`[^\s`](?:[^`]*[^\s`])?`[^\s`]*"
_TYPED: Final = r"(?:next:(?:\x1b\[0m)?|^(?:\x1b\[\d+m)?)\s+campaign [a-z].*?(?:(?=   \()|,(?= for )|$)"
_UNIT: Final = re.compile(rf"\s*(?:\x1b\[\d+m)?(?P<command>{_TYPED}|{_QUOTED})|\s*\S+")
"""A word, or a whole command: one that is broken over lines cannot be pasted."""

_PATH_PART: Final = re.compile(r"[^/]*/|[^/]+")

_BLANK: Final = "\0"
"""Stands for a blank that no line may break at."""


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


def fold(text: str, width: int | None, hanging: int | None = None) -> str:
    """The text with its long lines continued below themselves, indented: a terminal would break words.

    A command to be typed stays in one piece, on a line of its own where it does not fit behind other words.

    Args:
        width: columns; None for no limit.
        hanging: columns to indent by, as far as words fit behind them. By default two more than the line itself.
    """
    if width is None:
        return text
    lines = text.split("\n")
    for number, below in enumerate(lines[1:]):
        if below.strip() == "^":
            lines[number : number + 2] = _pointed(lines[number], below, width)
    return "\n".join(_folded(line, width, hanging) for line in lines)


def _pointed(line: str, below: str, width: int) -> tuple[str, str]:
    """A line with a caret below it: what is too long of it is cut, so that the caret points where it did."""
    if len(line) <= width:
        return line, below
    margin = len(line) - len(line.lstrip(" "))
    behind, room = len(below) - 1 - margin, width - margin
    start = max(0, min(behind - room // 2, len(line) - margin - room))
    shown = line[margin + start :][:room]
    shown = f"…{shown[1:]}" if start else shown
    shown = f"{shown[:-1]}…" if start + room < len(line) - margin else shown
    return " " * margin + shown, " " * (margin + behind - start) + "^"


def _folded(line: str, width: int, hanging: int | None) -> str:
    if _visible(line) <= width:
        return line
    plain = _ESCAPE.sub("", line)
    least = len(plain) - len(plain.lstrip(" ")) + 2
    rows, alone = [""], False
    for unit in _UNIT.finditer(line):
        full = _visible(rows[-1]) > 0 and _visible(rows[-1] + unit[0]) > width
        if full or alone:
            word = unit[0].lstrip()
            rows.append(" " * (hanging if hanging and hanging + _visible(word) <= width else least) + word)
        else:
            rows[-1] += unit[0]
        alone = full and unit["command"] is not None
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
    """Lines of a table; columns that are empty in every row are left out, a last one without a name is cut to fit.

    Where it is still too wide, text is continued below itself, within its column.

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
    if not cut:
        texts = [i for i in used if right[i : i + 1] != "r"]
        for split in (_pieces, _parts):  # a path is broken only where nothing else helps
            _narrow(widths, used, {i: max(len(w) for line in lines for w in split(line[i].text)) for i in texts}, page)
        lines = [part for line in lines for part in _wrapped(line, widths)]
    return [_line(page, [(line[i], widths[i], right[i : i + 1] == "r") for i in used], cut) for line in lines]


def _narrow(widths: dict[int, int], used: list[int], least: dict[int, int], page: Page) -> None:
    """Takes from the widest columns of text what the page lacks, down to what each must have at least."""
    spare = {i: widths[i] - least[i] for i in least}
    excess = 0 if page.width is None else sum(widths[i] for i in used) + len(_GAP) * (len(used) - 1) - page.width
    while excess > 0 and any(spare.values()):
        widest = max((i for i in spare if spare[i]), key=widths.__getitem__)
        widths[widest] -= 1
        spare[widest] -= 1
        excess -= 1


def _wrapped(line: Sequence[Cell], widths: dict[int, int]) -> list[list[Cell]]:
    """One row as several lines, where a cell is longer than its column is wide."""
    parts = [_words(cell.text, widths.get(i)) for i, cell in enumerate(line)]
    height = max(len(part) for part in parts)
    return [
        [Cell(part[n] if n < len(part) else "", cell.style) for part, cell in zip(parts, line, strict=True)]
        for n in range(height)
    ]


def _words(text: str, width: int | None) -> list[str]:
    if width is None or len(text) <= width:
        return [text]
    lines = [""]
    for piece in _pieces(text):
        for number, part in enumerate(_parts(piece) if len(piece) > width else [piece]):
            gap = " " if lines[-1] and not number else ""
            if lines[-1] and len(lines[-1] + gap + part) > width:
                lines.append(part)
            else:
                lines[-1] += gap + part
    return [line.replace(_BLANK, " ") for line in lines]


def _pieces(text: str) -> list[str]:
    """What a line may be broken between."""
    return _unbroken(text).split(" ")


def _parts(text: str) -> list[str]:
    """The same, and after each `/` of a path."""
    found = ([piece] if _BLANK in piece else _PATH_PART.findall(piece) for piece in _pieces(text))
    return [part for parts in found for part in parts] or [""]


def _unbroken(text: str) -> str:
    return re.sub(_QUOTED, lambda command: command[0].replace(" ", _BLANK), text)


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
        last = index == len(cells) - 1
        text = cell.text.rjust(width) if right else cell.text if last else cell.text.ljust(width)
        if cut and last:
            text = shorten(text.rstrip(), room)
        painted.append(page.paint(text, cell.style))
        room = None if room is None else max(0, room - width - len(_GAP))
    return _GAP.join(painted).rstrip()
