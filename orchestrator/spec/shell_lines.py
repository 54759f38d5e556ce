"""Whether bash can read the lines of `setup`: it ends a job at the first one that it cannot, on the node."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_TIMEOUT_S: Final = 5.0
_SAID: Final = re.compile(r"^\S*bash: (?:\S+: )?line (\d+): (.*)")
_OPENED: Final = re.compile(r"line (\d+)")


def unreadable(lines: Sequence[str]) -> tuple[int, str] | None:
    """Which line bash cannot read, from 0, and why; None where it can, or where there is no bash to ask."""
    return _asked(tuple(lines)) if any(line.strip() for line in lines) else None


@lru_cache(maxsize=64)
def statements(lines: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Return what the shell runs as a whole, each with the number of its first line, from 1.

    That is a line, or several that one construct spans: a block, a quote, a here-document, a line that goes on.
    """
    found, begun = list[tuple[int, str]](), 0
    for end, line in enumerate(lines, 1):
        text = "\n".join(lines[begun:end])
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if end == len(lines) or not (goes_on or (done := _read(text)) is None or done.returncode or done.stderr):
            found.append((begun + 1, text))
            begun = end
    return tuple(found)


@lru_cache(maxsize=64)  # the runs of a campaign share their lines
def _asked(lines: tuple[str, ...]) -> tuple[int, str] | None:
    done = _read("\n".join(lines))
    said = _SAID.match(done.stderr) if done else None
    if done is None or done.returncode == 0 or said is None:
        return None
    opened = _OPENED.search(said[2])  # of a block or a quote that is never closed, where it began
    number = int(opened[1] if opened else said[1]) - 1
    return min(number, len(lines) - 1), said[2]


def _read(text: str) -> subprocess.CompletedProcess[str] | None:
    """Have bash read a text without running it; None if there is no bash, or it does not respond."""
    try:
        return subprocess.run(
            ["bash", "--norc", "-O", "extglob", "-n"],  # which a line may switch on for those after it
            input=f"{text}\n",
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
