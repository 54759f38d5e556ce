"""Numbers, durations, fields and foreign text as people read them."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import ceil
from pathlib import PurePath
from typing import Any, Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROL: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: cursor, colours
    r"|(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS: title, clipboard
    r"|\x1b[ -/]*[0-~]?"  # other sequences, and the beginning of one that has no end
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # these show text in another order than it is in
)

_IN_ENVIRONMENT: Final = re.compile(r"(?<=[^/])/bin/python[\d.]*$")


def shorten(text: str, width: int | None) -> str:
    """The text in at most `width` characters."""
    return text if width is None or len(text) <= width else text[: max(width - 1, 0)] + "…"


def shorten_middle(text: str, width: int | None) -> str:
    """As `shorten`, of names that differ at the end as often as at the beginning."""
    if width is None or len(text) <= width:
        return text
    head = width // 2
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


def printable(text: str, *, colours: bool = False) -> str:
    """Text without escape sequences, control characters and changes of direction, which a terminal would obey.

    Line ends and tabs stay, and with `colours` the sequences that only change colours and the like (SGR).
    """
    return _CONTROL.sub(lambda match: match[0] if colours and _COLOUR.fullmatch(match[0]) else "", text)


def clean(text: str) -> str:
    """Text of a script or a log in one line, as `printable`."""
    return printable(re.sub(r"\r+(?=\n|$)", "", text).replace("\r", " ")).replace("\n", " ").replace("\t", " ")


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\n")


def spreadsheet_cells(row: Iterable[Any]) -> list[Any]:
    """A line of CSV or TSV, header included, without formulas: text that begins like a formula gets an apostrophe.

    A script chooses the names of its metrics, and a spreadsheet would run `=HYPERLINK(...)`. Text that is a number
    (`-inf`) stays as it is, as do numbers; flags are `true` and `false`, structures JSON. A carriage return is a line
    end: unquoted, it would end the row.
    """
    return [json.dumps(it) if isinstance(it, bool | dict | list | tuple) else _inert(it) for it in row]


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if text.startswith(_FORMULA):
        try:
            float(text)
        except ValueError:
            return f"'{text}"
    return text


def words(name: str) -> str:
    """A name of this program as people read it: `completed early` for `completed_early`."""
    return name.replace("_", " ")


def last_part(path: str) -> str:
    """The last part of a path; of an environment's Python the name of the environment."""
    return PurePath(_IN_ENVIRONMENT.sub("", path)).name


_AS_WRITTEN: Final = re.compile(r"\[?(?:[\w@%+=:,./-]|\{[\w.]+\})+\]?")


def shell_line(command: Iterable[str]) -> str:
    """A command as it is typed: its placeholders, and the brackets of its optional groups, need no quotes."""
    return " ".join(word if _AS_WRITTEN.fullmatch(word) else shlex.quote(word) for word in command)


def clock_time(seconds: float) -> str:
    """The time of day of an epoch time: `14:32:10 UTC`."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def source(file: str, line: int) -> str:
    """The place of a line; a record without lines counts as line 0."""
    return f"{file}:{line}" if line else file


def count(number: int, noun: str) -> str:
    """`1 run`, `24 runs`, `1,536 GPU-hours`; a noun that ends in s, x or h gets `es`."""
    plural = noun if number == 1 else noun + ("es" if noun.endswith(("s", "x", "h")) else "s")
    return f"{number:,} {plural}"


def some(names: Sequence[str], most: int = 6) -> str:
    """The first names, and how many more there are: `a, b and 7 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def rough(value: float) -> str:
    """Hours as whole numbers, or a few with two digits: `1,536`, `0.033`."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


_WHOLE: Final = 1e9
"""Above it a figure is a power of ten: nobody counts its digits."""


def figure(value: float | None, digits: int = 4, sign: str = "") -> str:
    """A metric with so many significant digits, or whole; `nan` as it is, empty for None."""
    if value is None:
        return ""
    if 10**digits - 0.5 <= abs(value) < _WHOLE:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.{digits}g}"


LARGE_LOSS: Final = 1e4
"""From it on nobody reads the decimals of a loss."""


def loss_number(value: float, decimals: int = 4) -> str:
    """A loss with so many decimals, as fits nats; a tiny or huge loss as a figure."""
    if value == 0.0 or 0.1 <= abs(value) < LARGE_LOSS:
        return f"{value:.{decimals}f}"
    return figure(value)


def short_number(value: float | None) -> str:
    """`48.2k` for 48,231."""
    if value is None or not math.isfinite(value):
        return "" if value is None else str(value)
    rounded = float(f"{value:.3g}")  # first: 999.9 is 1k
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= abs(rounded) < 1e15:
            return f"{rounded / size:.3g}{unit}"
    return f"{rounded:.3g}"


def size(size_bytes: float) -> str:
    """`1.3 GB` for 1,342,177,280 bytes."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{ceil(size_bytes / 1e3)} kB"


def moment(seconds: float) -> str:
    """A time since 1970 in the local time zone: `2026-11-22 16:05:00`, or the bare number if no calendar has it."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s"


def near_time(seconds: float, now_s: float) -> str:
    """A time of the next days in the local time zone, to the minute: `16:05`, or `Sun 22 Nov 16:05` on another day."""
    try:
        here, now = time.localtime(seconds), time.localtime(now_s)
    except (OverflowError, ValueError, OSError):
        return moment(seconds)
    return time.strftime("%H:%M" if here[:3] == now[:3] else "%a %d %b %H:%M", here)


_LONGEST_S: Final = 1e10


def duration(seconds: float) -> str:
    """`45 s`, `1 min 46 s`, `12 min`, `3 h 20 min`, `2 d 4 h`: to the nearest of the last unit."""
    if not seconds < _LONGEST_S:  # NaN too: clocks, and scripts, may say anything
        return f"{seconds / 86400:.3g} d"
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


def flat_fields(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield fields and their values, with dots in the names of nested fields."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from flat_fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


_SHOWN_ROWS: Final = 60


def html_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table for a notebook, everything escaped: of many rows the first, and no empty column."""
    used = [place for place in range(len(header)) if place == 0 or any(str(row[place]) for row in rows)]

    def line(tag: str, cells: Sequence[object]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(clean(str(cells[place])))}</{tag}>' for place in used)}</tr>"

    body = "".join(line("td", row) for row in rows[:_SHOWN_ROWS])
    more = f"<p>… and {len(rows) - _SHOWN_ROWS:,} more</p>" if len(rows) > _SHOWN_ROWS else ""
    return f"<p>{escape(clean(title))}</p><table><thead>{line('th', header)}</thead><tbody>{body}</tbody></table>{more}"
