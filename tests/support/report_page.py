"""A report, read back from its files."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table as it is on the page."""

    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    @property
    def rows(self) -> list[dict[str, str]]:
        return [dict(zip(self.header, row, strict=True)) for row in self.cells]


@dataclass(frozen=True)
class Page:
    """A report, read back from its files."""

    folder: Path

    @cached_property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    @property
    def workloads(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.document["workloads"]
        return found

    @cached_property
    def markdown(self) -> str:
        return (self.folder / "report.md").read_text()

    @cached_property
    def html(self) -> str:
        return (self.folder / "report.html").read_text()

    @cached_property
    def sections(self) -> dict[str, str]:
        parts = self.markdown.split("\n## ")[1:]
        return {title: text for title, _, text in (part.partition("\n") for part in parts)}

    def text(self, section: str) -> str:
        """The section that begins with these words."""
        return next(text for title, text in self.sections.items() if title.startswith(section))

    def tables(self, section: str) -> list[Table]:
        """Those of the section that begins with these words."""
        return [_table(block) for block in re.findall(r"(?:^\|.*\n)+", self.text(section) + "\n", re.MULTILINE)]

    def table(self, section: str, number: int = 0) -> list[dict[str, str]]:
        return self.tables(section)[number].rows

    def figures(self) -> set[str]:
        return {path.stem for path in (self.folder / "figures").glob("*.svg")}

    def words(self, figure: str) -> set[str]:
        """Texts that a figure draws."""
        return drawn_words(self.folder / "figures" / f"{figure}.svg")


def drawn_words(svg: Path) -> set[str]:
    """Texts that a figure draws."""
    found = re.findall(r"<text\b[^>]*>(.*?)</text>", svg.read_text(), re.DOTALL)
    return {html.unescape(word).strip() for word in found}


def _table(block: str) -> Table:
    lines = [re.sub(r"\\(.)", r"\1", line).strip()[2:].removesuffix("|") for line in block.splitlines()]
    header, _, *rows = (tuple(cell.strip() for cell in re.split(r" \|(?: |$)", line)) for line in lines)
    return Table(header, tuple(rows))
