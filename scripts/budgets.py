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
_MESSAGE: Final = re.compile(r"[\w`'\"{ ]")
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
    for kind, texts in _texts().items():
        text = " ".join(texts)
        total = len(text.split())
        for pattern, budget in _BUDGETS["words"].items():
            rate = 1000 * len(re.findall(rf"\b({pattern})\b", text, re.IGNORECASE)) / total
            if rate > budget:
                yield f"{kind}: {rate:.1f} of 1,000 words are {pattern.replace('|', ', ')}; budget {budget}"


def _texts() -> dict[str, list[str]]:
    """Return docstrings, and messages: other strings of four words and more."""
    found: dict[str, list[str]] = {"docstrings": [], "messages": []}
    for folder in ("orchestrator", "jobs", "db", "files"):
        for file in (_ROOT / folder).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            documented = (n for n in nodes if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
            own = {text for node in documented if (text := ast.get_docstring(node, clean=False))}
            texts = {n.value: None for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            found["docstrings"] += own
            found["messages"] += [t for t in texts if t not in own and len(t.split()) > 3 and _MESSAGE.match(t)]
    return found


if __name__ == "__main__":
    sys.exit(main())
