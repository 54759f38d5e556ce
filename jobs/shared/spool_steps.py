"""What a spool says of steps: the first, the last, and how many there are to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ...db.ingest.lines import MAX_WHOLE

TAIL_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 4 * 2**20
HEAD_LINES: Final = 100


def first_step(spool: Path, default: int) -> int:
    """The oldest step in the spool, or ``default`` if there is none near its beginning."""
    return next((step for line in _head(spool) if (step := _step(line)) is not None), default)


def last_step(spool: Path) -> int | None:
    """The newest step in the spool. Reads only its end: a spool may hold a million lines."""
    return next((step for line in reversed(tail(spool)) if (step := _step(line)) is not None), None)


def target_step(spool: Path) -> int | None:
    """The target that a script counts before its first step: the event ``target`` near the spool's beginning."""
    found = (_target(line) for line in _head(spool)[:HEAD_LINES])
    return next((steps for steps in found if steps is not None), None)


def tail(path: Path) -> list[str]:
    """Lines of a file's end, of which the first may be torn; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _head(path: Path) -> list[str]:
    """Lines of a file's beginning, of which the last may be torn; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _step(line: str) -> int | None:
    return _whole(_object(line).get("step"))


def _target(line: str) -> int | None:
    event = _object(line)
    return _whole(event.get("steps")) if event.get("event") == "target" else None


def _object(line: str) -> dict[str, Any]:
    """The object in a line; an empty one for a line that is torn, or not ours."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> int | None:
    """A number of steps, as ingest takes them."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_WHOLE else None
