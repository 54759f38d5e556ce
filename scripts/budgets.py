"""Compares the size of each package and its words with scripts/budgets.toml: `python scripts/budgets.py`.

A feature that needs more lines than its package has left deletes others first. `make lint` runs this.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_BUDGETS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def main() -> int:
    """Print what is over its budget; return the exit status."""
    over = [*_lines(), *_words()]
    print("\n".join(over), file=sys.stderr)
    return 1 if over else 0


def _lines() -> Iterator[str]:
    for folders, budget in _BUDGETS["lines"].items():
        files = [file for folder in folders.split() for file in (_ROOT / folder).rglob("*.py")]
        count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
        if count > budget:
            yield f"{folders}: {count:,} lines, budget {budget:,} (scripts/budgets.toml)"


def _words() -> Iterator[str]:
    text = " ".join(_docstrings())
    total = len(text.split())
    for pattern, budget in _BUDGETS["words"].items():
        rate = 1000 * len(re.findall(rf"\b({pattern})\b", text, re.IGNORECASE)) / total
        if rate > budget:
            yield f"docstrings: {rate:.1f} of 1,000 words are {pattern.replace('|', ', ')}; budget {budget}"


def _docstrings() -> Iterator[str]:
    for folder in ("orchestrator", "jobs", "db", "files"):
        for file in (_ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield ast.get_docstring(node) or ""


if __name__ == "__main__":
    sys.exit(main())
