"""Read the steps of a spool: the first, the last, the target, and whether the loss is still a number."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

from dscampaign.db.ingest.lines import highest_step
from dscampaign.db.ingest.reader import read_on
from dscampaign.db.storable import is_whole
from dscampaign.files.private_files import open_regular

from .divergence import diverged

TAIL_BYTES: Final = 64 * 1024
HEAD_BYTES: Final = 16 * 2**20
HEAD_LINES: Final = 100
_CHUNK_BYTES: Final = 1 << 20


def steps_before(spool: Path) -> int:
    """Return the number of steps made before those of a spool: its first line stands for as many as its second."""
    steps = _steps(spool)
    first = next(steps, 1)
    return max(0, 2 * first - next((step for step in steps if step > first), first + 1))


def last_step(spool: Path, target: int | None = None) -> int | None:
    """Return the newest plausible step in the spool; only the end of the spool is read."""
    most = highest_step(target)
    steps = (step for line in reversed(tail(spool)) if (step := _step(line)) is not None and step <= most)
    return next(steps, None)


def step_reached(spool: Path, start_step: int, target: int | None = None) -> int | None:
    """Return the highest step that may have been made: a script may report every tenth only, or count from 0.

    `target`: of the attempt, None if unknown; steps far beyond it do not count.
    """
    reported = {step for line in tail(spool) if (step := _step(line, least=0)) is not None}
    steps = sorted(step for step in reported if step <= highest_step(target))
    if not steps:
        return None
    gaps = [later - step for step, later in pairwise(steps)] or [steps[0] - start_step, 1]
    return steps[-1] + max(gaps) - 1 + (next(_steps(spool), 1) <= start_step)


def diverged_at(spool: Path) -> tuple[str, int] | None:
    """Return the figure that is not finite at the end of a spool, and the step since when."""
    end = [_object(line) for line in tail(spool)]
    certain = diverged(end)
    if certain or diverged(end, from_start=False):
        return diverged(map(_object, _lines(spool))) or certain
    return None


def target_step(spool: Path) -> int | None:
    """Return the target that a script counts before its first step: the event ``target`` near the beginning."""
    return next((event["steps"] for event in events(spool, "target") if is_whole(event.get("steps"), 1)), None)


def events(spool: Path, name: str) -> list[dict[str, Any]]:
    """Return a script's events of that name near the spool's beginning; none if it cannot be read."""
    return [row for row in map(_object, islice(_lines(spool), HEAD_LINES)) if row.get("event") == name]


def tail(path: Path) -> list[str]:
    """Return the lines of a file's end, the first perhaps torn; none if it cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return (file.read(TAIL_BYTES) or b"").decode(errors="replace").splitlines()
    except OSError:
        return []


def _lines(spool: Path) -> Iterator[bytes]:
    offset, length = 0, 1
    with contextlib.suppress(OSError):
        while length and offset < HEAD_BYTES and (stretch := read_on(spool, offset, _CHUNK_BYTES)):
            lines = stretch.chunk[: stretch.chunk.rfind(b"\n") + 1]
            yield from lines.splitlines()
            offset += (length := stretch.skipped + len(stretch.chunk if stretch.endless else lines))


def _steps(spool: Path) -> Iterator[int]:
    return (step for line in _lines(spool) if (step := _step(line, least=0)) is not None)


def _step(line: str | bytes, least: int = 1) -> int | None:
    step = _object(line).get("step")
    return step if is_whole(step, least) else None


def _object(line: str | bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):  # torn, or not ours
        return {}
    return parsed if isinstance(parsed, dict) else {}
