"""The lines of `setup` as jobs run them: one that fails ends the job, and leaves a record that needs no interpretation.

All lines run in a single shell, so that variables stay set. A line fails as under `set -e`: by its exit status, unless
that is of a command whose failure the line itself handles (`|| true`, `if`, the left side of `&&`).
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from dscampaign.jobs.shared.documents import Document, Number

_SHOWN: Final = 300
"""Characters of a line that the record holds."""
_TIMEOUT_S: Final = 5.0

_BEGIN: Final = r"""
dscampaign_note() {
  local status=$?
  [ -z "${dscampaign_line:-}" ] || (
    umask 077
    printf '%s%d, "host": "%s"}\n' "$dscampaign_line" "$status" "${SLURMD_NODENAME:-$HOSTNAME}" >"$dscampaign_record"
  )
}
dscampaign_check() {
  local status=$?
  [ "$status" = 0 ] || [ -z "$dscampaign_failed" ] || exit "$status"
  dscampaign_failed= dscampaign_line=
}
dscampaign_failed=
trap dscampaign_note EXIT
trap 'dscampaign_failed=1' ERR
""".strip()


@dataclass(frozen=True)
class SetUpFailure(Document):
    """The line of `setup` that ended a job.

    Attributes:
        line: its number, from 1.
        status: its exit status, or that with which it ended the shell; above 128 for a signal.
    """

    line: Number
    text: str
    status: Number
    host: str


def record_of(batch: Path, index: int) -> Path:
    """Return the path of the record of a task of a batch."""
    return batch / f"setup-{index}.json"


def guarded(lines: Sequence[str], batch: Path, index: str) -> list[str]:
    """Return the shell lines that run ``lines`` and record the one that fails.

    Args:
        index: the task's number, in the shell's syntax.
    """
    if not any(map(str.strip, lines)):
        return []
    folder = shlex.quote(str(batch))
    return [f"dscampaign_record={folder}/setup-{index}.json", _BEGIN, *_checked(lines), "trap - ERR"]


def _checked(lines: Sequence[str]) -> Iterator[str]:
    for number, text in _statements(tuple(lines)):
        head = json.dumps({"line": number, "text": text.strip()[:_SHOWN]})[:-1]
        yield "dscampaign_line=" + shlex.quote(head + ', "status": ')
        yield text
        yield "dscampaign_check"


@lru_cache(maxsize=64)  # the runs of a campaign share their lines
def _statements(lines: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
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
