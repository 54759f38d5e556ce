"""Which version a benchmark measures, and how its results are kept."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def commit_id() -> str | None:
    """The commit that is checked out, ``-dirty`` behind it where files differ; None where git cannot say it."""
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def write_json(path: Path | None, document: object) -> None:
    """Writes a document, whole or not at all: a benchmark may be killed at any moment. Nothing without a path."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(json.dumps(document, indent=1) + "\n")
        draft.replace(path)
