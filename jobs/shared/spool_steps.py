"""What a spool says of steps: the first, the last, how many there are to be, and whether the loss is still a number."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from ...db.ingest.reader import read_on
from ...db.storable import is_whole
from ...files.regular_files import open_regular

TAIL_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 16 * 2**20
HEAD_LINES: Final = 100
_CHUNK_BYTES: Final = 1 << 20

_PART: Final = r"(?:train|training|eval|evaluation|val|valid|validation|dev|test|held_?out)"
_LOSS: Final = re.compile(rf"(?:{_PART}[_/. -])?loss|loss[_/. -]{_PART}", re.IGNORECASE)
"""What scripts call the loss that they train or evaluate; not a part of it, of which a step may have none."""


def first_step(spool: Path, default: int, least: int = 1) -> int:
    """The oldest step in the spool that counts, or ``default`` if there is none near its beginning."""
    with contextlib.suppress(OSError):
        return next((step for line in _lines(spool) if (step := _step(line, least)) is not None), default)
    return default


def last_step(spool: Path) -> int | None:
    """The newest step in the spool. Reads only its end: a spool may hold a million lines."""
    return next((step for line in reversed(tail(spool)) if (step := _step(line)) is not None), None)


def step_reached(spool: Path, start_step: int) -> int | None:
    """The highest step that may have been made: a script may report every tenth only, or count them from 0.

    Args:
        spool: of an attempt that has ended.
        start_step: steps that were done when it began, 0 if not known.
    """
    steps = sorted({step for line in tail(spool) if (step := _step(line, least=0)) is not None})
    if not steps:
        return None
    apart = [later - step for step, later in pairwise(steps)] or [steps[0] - start_step, 1]
    return steps[-1] + max(apart) - 1 + (first_step(spool, 1, least=0) <= start_step)


def diverged_at(spool: Path) -> tuple[str, int] | None:
    """The loss that is not finite in the newest line that has it, and the step since when it is not."""
    with contextlib.suppress(OSError):
        return (found := _diverged(tail(spool))) and (_diverged(_lines(spool)) or found)
    return None


def target_step(spool: Path) -> int | None:
    """The target that a script counts before its first step: the event ``target`` near the spool's beginning."""
    with contextlib.suppress(OSError):
        found = (_target(line) for line in islice(_lines(spool), HEAD_LINES))
        return next((steps for steps in found if steps is not None), None)
    return None


def events(spool: Path, name: str) -> list[dict[str, Any]]:
    """What a script said under that name near the spool's beginning; none where it cannot be read."""
    with contextlib.suppress(OSError):
        return [row for row in map(_object, islice(_lines(spool), HEAD_LINES)) if row.get("event") == name]
    return []


def tail(path: Path) -> list[str]:
    """Lines of a file's end, of which the first may be torn; none where it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return (file.read(TAIL_BYTES) or b"").decode(errors="replace").splitlines()
    except OSError:
        return []


def _diverged(lines: Iterable[str | bytes]) -> tuple[str, int] | None:
    since: dict[str, int] = {}
    for row in map(_object, lines):
        for name in filter(_LOSS.fullmatch, row):
            value, step = row[name], row.get("step")
            if not isinstance(value, float) or math.isfinite(value):
                since.pop(name, None)
            elif is_whole(step):
                since.setdefault(name, step)
    return min(since.items(), key=lambda found: (found[0] != "loss", found[1]), default=None)


def _lines(spool: Path) -> Iterator[bytes]:
    """The complete lines of a spool's beginning, but for those that are too long."""
    offset = 0
    while offset < HEAD_BYTES and (found := read_on(spool, offset, _CHUNK_BYTES)):
        lines = found.chunk[: found.chunk.rfind(b"\n") + 1]
        yield from lines.splitlines()
        taken = found.skipped + len(found.chunk if found.endless else lines)
        if not taken:
            return
        offset += taken


def _step(line: str | bytes, least: int = 1) -> int | None:
    step = _object(line).get("step")
    return step if is_whole(step, least) else None


def _target(line: bytes) -> int | None:
    event = _object(line)
    steps = event.get("steps") if event.get("event") == "target" else None
    return steps if is_whole(steps, 1) else None


def _object(line: str | bytes) -> dict[str, Any]:
    """A line's object, empty where it is torn, or not ours."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
