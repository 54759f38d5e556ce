"""Metrics over several printed lines: a record as `pprint` writes it, or rows below the names of their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from .formats import LOSS

LINE_LIMIT: Final = 1000  # characters of a line that are read
_OPENS: Final = re.compile(r"\{\s*(?:[\"'].*)?$")
_ITEM: Final = re.compile(r"\s*[\"'{}\]]")
_COLUMN: Final = re.compile(r"[a-z][\w /.()%-]*", re.IGNORECASE)
_STEP: Final = re.compile(r"(?:global[ _]?)?step|iter|iteration|epoch", re.IGNORECASE)
_CELL: Final = re.compile(r"[-+.\d]\S*|nan|inf|none|n/a|", re.IGNORECASE)


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
