"""What a spool says of steps: the first, the last, and how many there are to be."""

from __future__ import annotations

import contextlib
import json
from itertools import islice
from pathlib import Path
from typing import Final

TAIL_BYTES: Final = 64 * 1024
HEAD_LINES: Final = 100


def first_step(spool: Path, default: int) -> int:
    """The oldest step in the spool, or ``default`` if there is none."""
    with contextlib.suppress(OSError), spool.open(errors="replace") as file:
        return next((step for line in file if (step := _step(line)) is not None), default)
    return default


def last_step(spool: Path) -> int | None:
    """The newest step in the spool. Reads only its end: a spool may hold a million lines."""
    return next((step for line in reversed(tail(spool)) if (step := _step(line)) is not None), None)


def target_step(spool: Path) -> int | None:
    """The target that a script counts before its first step: the event ``target`` near the spool's beginning."""
    with contextlib.suppress(OSError), spool.open(errors="replace") as file:
        found = (_target(line) for line in islice(file, HEAD_LINES))
        return next((steps for steps in found if steps is not None), None)
    return None


def tail(path: Path) -> list[str]:
    """Lines of a file's end, of which the first may be torn; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def _step(line: str) -> int | None:
    try:
        step = json.loads(line).get("step")
    except (ValueError, AttributeError):
        return None  # torn, or not ours
    return step if isinstance(step, int) and step > 0 else None


def _target(line: str) -> int | None:
    try:
        event = json.loads(line)
        steps = event["steps"] if event["event"] == "target" else None
    except (ValueError, TypeError, KeyError):
        return None
    return steps if isinstance(steps, int) else None
