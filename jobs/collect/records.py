"""Several printed lines: a record of `pprint`, rows below the names of their columns, lines of a validation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from .formats import HELD_OUT_TERM, LOSS, Reading

LINE_LIMIT: Final = 1000  # characters of a line that are read
BANNER_LIMIT: Final = 100
_OPENS: Final = re.compile(r"\{\s*(?:[\"'].*)?$")
_ITEM: Final = re.compile(r"\s*[\"'{}\]]")
_COLUMN: Final = re.compile(r"[a-z][\w /.()%-]*", re.IGNORECASE)
_STEP: Final = re.compile(r"(?:global[ _]?)?step|iter|iteration|epoch", re.IGNORECASE)
_CELL: Final = re.compile(r"[-+.\d]\S*|nan|inf|none|n/a|", re.IGNORECASE)
_BANNER: Final = re.compile(
    rf"(?:^|[\]|>:] |- )\W*(?:[a-z]+ ){{0,2}}(?:(?P<held_out>{HELD_OUT_TERM})|epoch|train|training)(?: [a-z]+){{0,5}}"
    r"(?:[ \[#]*\d+(?:/\d+)?\]?)?\W*$",
    re.IGNORECASE,
)
_NO_BEGIN: Final = re.compile(r"\b(?:complet|data|done|end|finish|load|sav|set up|skip)", re.IGNORECASE)


class Records:
    """Join the lines of a record, and name the numbers of a table's row after its columns."""

    def __init__(self) -> None:
        self._record, self._depth = "", 0
        self._columns: list[str] = []

    def joined(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the lines, with a single line of names and values for each record and each row."""
        for text in texts:
            if self._depth and _ITEM.match(text):
                self._record = f"{self._record} {text.strip()}"[:LINE_LIMIT]
            else:
                self._record, self._depth = text, 0
            if self._depth or _OPENS.search(text):
                self._depth = max(0, self._depth + text.count("{") - text.count("}"))
            if not self._depth:
                yield self._row(self._record) or self._record

    def _row(self, text: str) -> str:
        """Return the names and values of a row; "" for another line. The names of a table come first."""
        delimiter = next((mark for mark in "|\t,;" if mark in text), None)
        cells = [cell.strip() for cell in text.strip(" |").split(delimiter)]
        if LOSS.search(text) and all(map(_COLUMN.fullmatch, cells)) and any(map(_STEP.fullmatch, cells)):
            self._columns = cells
        if len(cells) == len(self._columns) and all(map(_CELL.fullmatch, cells)):
            return ", ".join(f"{name}: {cell}" for name, cell in zip(self._columns, cells, strict=True) if cell)
        return ""


class HeldOutBlocks:
    """Find lines below a banner such as `=== Validation ===` whose steps or totals do not continue the training's."""

    def __init__(self, run_steps: int | None) -> None:
        self._run_steps, self.inside = run_steps, False
        self._trained: tuple[int | None, int, int] | None = None  # epoch, total, step
        self._own: list[Reading] = []  # the last two

    def look(self, text: str) -> None:
        """Take note of a banner: of held-out data, or of the training."""
        if len(text) <= BANNER_LIMIT and (match := _BANNER.search(text.rstrip(". "))):
            self.inside, self._own = bool(match["held_out"]) and not _NO_BEGIN.search(text), []

    def has(self, read: Reading) -> bool:
        """Return whether a line is about held-out data; any other line is about the training."""
        self.inside = self.inside and self._is_own(read)
        if self.inside:
            self._own = [*self._own[-1:], read]
        else:
            self._trained = read.epoch, read.total, read.step
        return self.inside

    def _is_own(self, read: Reading) -> bool:
        if self._trained is None:
            return bool(read.total and self._run_steps) and read.total != self._run_steps and read.epoch is None
        epoch, total, step = self._trained
        if (read.epoch, read.total) != (epoch, total):
            return read.epoch == epoch
        before, last = self._own if len(self._own) > 1 else (read, read)
        follows = last.total == total and last.step < read.step <= 2 * last.step - before.step
        return follows or read.step < step or (read.step == step and not read.bar)
