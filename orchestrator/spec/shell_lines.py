"""Lines of a shell script as statements: bash itself decides where one ends, and runs nothing."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from typing import Final

_TIMEOUT_S: Final = 5.0


@lru_cache(maxsize=64)  # the runs of a campaign share their lines
def statements(lines: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Return the text of each statement, with the number of its first line."""
    result, begun = list[tuple[int, str]](), 0
    for end, line in enumerate(lines, 1):
        text = "\n".join(lines[begun:end])
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if end == len(lines) or not (goes_on or _is_open(text)):
            result.append((begun + 1, text))
            begun = end
    return tuple(result)


def _is_open(text: str) -> bool:
    """Return whether bash needs further lines to read a text; it runs nothing. Without bash, all lines are one."""
    if not text.strip():
        return False
    try:
        done = subprocess.run(
            ["bash", "--norc", "-O", "extglob", "-n"],  # which a line may switch on for those after it
            input=f"{text}\n",
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin:/usr/local/bin"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return bool(done.returncode or done.stderr)
