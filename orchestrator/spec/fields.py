"""Every field that a spec may set, with the words that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("fields.json")
"""Made from the models by `scripts/write_docs.py`: to load them takes longer than a key may."""


def settable_fields() -> dict[str, tuple[str, ...]]:
    """Dotted paths as `--set` takes them, each with the words that the field accepts; none where it takes any value."""
    kept: dict[str, list[str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: tuple(words) for name, words in kept.items()}
