"""The lines of `setup` as jobs run them, in a single shell, with a record of a line that fails.

A line fails as under `set -e`, by its exit status. A batch job's shell is no login shell, and may lack `module` and
`conda`: before the first line that starts with an unknown command it reads the files of a login shell.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dscampaign import sbatch
from dscampaign.jobs.shared.documents import Document, Number
from dscampaign.jobs.shared.payload import SETUP_PYTHON
from dscampaign.orchestrator.spec.shell import whole_lines

_SHOWN: Final = 300
"""Characters of a line that the record holds."""

_BEFORE: Final = 'dscampaign_before=":$(command -v python):$(command -v python3):"'
_ACTIVATES: Final = re.compile(r"\bactivate\b")
"""A line that chooses a Python even if the shell that submits has chosen the same."""
_COMMAND: Final = re.compile(r"\s*([\w.+-]+)(?=\s|;|$)")


@dataclass(frozen=True)
class SetUpFailure(Document):
    """The line of `setup` that ended a job, its number from 1, and its status: above 128 for a signal."""

    line: Number
    text: str
    status: Number
    host: str


def record_of(batch: Path, index: int) -> Path:
    """Return the path of the record of a task of a batch."""
    return batch / f"setup-{index}.json"


def guarded(lines: Sequence[str], batch: Path, index: str) -> list[str]:
    """Return shell lines that run ``lines`` and record a failure; `index` is the task's, in the shell's syntax."""
    if not any(map(str.strip, lines)):
        return []
    folder = shlex.quote(str(batch))
    login = shlex.quote(sbatch.lines("setup_login.sh"))
    begin = [f"dscampaign_record={folder}/setup-{index}.json", f"dscampaign_login={login}"]
    before, after = python_chosen(lines)
    return [before, *begin, sbatch.lines("setup_begin.sh"), *_checked(lines), after, "{ trap - ERR; } 2>/dev/null"]


def python_chosen(lines: Sequence[str]) -> tuple[str, str]:
    """Return the shell lines around ``lines`` that export the Python that they choose as `SETUP_PYTHON`."""
    before = "dscampaign_before=" if any(map(_ACTIVATES.search, lines)) else _BEFORE
    return before, sbatch.render("setup_python.sh", {"variable": SETUP_PYTHON}).rstrip()


def _checked(lines: Sequence[str]) -> Iterator[str]:
    for number, text in whole_lines(tuple(lines)):
        head = json.dumps({"line": number, "text": text.strip()[:_SHOWN]})[:-1]
        yield "{ dscampaign_line=" + shlex.quote(head + ', "status": ') + "; } 2>/dev/null"
        if command := _COMMAND.match(text):
            yield f'{{ dscampaign_name={shlex.quote(command[1])}; eval "$dscampaign_login"; }} 2>/dev/null'
        yield text
        yield "{ dscampaign_check; } 2>/dev/null"
