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


@lru_cache(maxsize=64)  # the runs of a campaign share their lines
def _asked(lines: tuple[str, ...]) -> tuple[int, str] | None:
    try:
        done = subprocess.run(
            ["bash", "--norc", "-O", "extglob", "-n"],  # which a line may switch on for those after it
            input="\n".join(lines) + "\n",
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _SAID.match(done.stderr)
    if done.returncode == 0 or said is None:
        return None
    opened = _OPENED.search(said[2])  # of a block or a quote that is never closed, where it began
    number = int(opened[1] if opened else said[1]) - 1
    return min(number, len(lines) - 1), said[2]
