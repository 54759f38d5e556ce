"""Text for a terminal: colour that can be switched off, tables that line up, numbers that people can read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
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
    """What text is written for.

    Attributes:
        colour: whether styles are shown.
        width: columns of the terminal, None for a file or a pipe, where nothing is cut.
    """

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
        page: What it is written for.
        header: Names of the columns.
        rows: As many cells each.
        right: For each column `r` where its cells are numbers, else any other character.
        drop: Names of columns to leave out, one after the other, until no cell needs to be cut.
        capitals: Names of columns are this program's own words, and shown in capitals.
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


def shorten(text: str, width: int | None) -> str:
    """The text in at most `width` characters."""
    return text if width is None or len(text) <= width else text[: max(width - 1, 0)] + "…"


def clean(text: str) -> str:
    """Text of a script or a log without what would move the cursor or change colours."""
    return _CONTROL.sub("", text).replace("\n", " ").replace("\t", " ")


def source(file: str, line: int) -> str:
    """Where a line stands; a record that has no lines counts as line 0."""
    return f"{file}:{line}" if line else file


def count(number: int, noun: str) -> str:
    """`1 run`, `24 runs`, `1,536 GPU-hours`; a noun that ends in s, x or h gets `es`."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith(("s", "x", "h")) else "s")
    return f"{number:,} {plural}"


_WHOLE: Final = 1e9
"""Above it a figure is a power of ten: nobody counts its digits."""


def figure(value: float | None, digits: int = 4) -> str:
    """A metric with so many significant digits, or whole; `nan` where it is none, nothing where there is none."""
    if value is None:
        return ""
    if 10**digits - 0.5 <= abs(value) < _WHOLE:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def short_number(value: float | None) -> str:
    """`48.2k` for 48,231."""
    if value is None or not math.isfinite(value):
        return "" if value is None else str(value)
    rounded = float(f"{value:.3g}")  # first: 999.9 is 1k
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(rounded) >= size:
            return f"{rounded / size:.3g}{unit}"
    return f"{rounded:.3g}"


def duration(seconds: float) -> str:
    """`45 s`, `1 min 46 s`, `12 min`, `3 h 20 min`, `2 d 4 h`: to the nearest of the last unit."""
    whole = round(max(seconds, 0.0))
    minutes, hours = round(whole / 60), round(whole / 3600)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return _two(*divmod(whole, 60), "min", "s")
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return _two(*divmod(minutes, 60), "h", "min")
    return _two(*divmod(hours, 24), "d", "h")


def _two(number: int, rest: int, unit: str, lesser: str) -> str:
    return f"{number} {unit} {rest} {lesser}" if rest else f"{number} {unit}"
