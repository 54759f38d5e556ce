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

from dscampaign.jobs.shared.documents import Document, Number
from dscampaign.jobs.shared.payload import SETUP_PYTHON
from dscampaign.orchestrator.spec.shell import whole_lines

_SHOWN: Final = 300
"""Characters of a line that the record holds."""

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
trap '{ dscampaign_note; } 2>/dev/null' EXIT
trap '{ dscampaign_failed=1; } 2>/dev/null' ERR
""".strip()
"""Without error output, as all that is added to the lines: `set -x` shows the lines alone."""

_LOGIN: Final = r"""
if [ -z "${dscampaign_read-}" ] && ! type "$dscampaign_name" >/dev/null 2>&1; then
  dscampaign_read=1 dscampaign_path=$PATH dscampaign_options=$(set +o)
  set +eu
  if [ -r /etc/profile ]; then . /etc/profile; fi
  for dscampaign_file in ~/.bash_profile ~/.bash_login ~/.profile; do
    if [ -r "$dscampaign_file" ]; then . "$dscampaign_file"; break; fi
  done
  PATH=$dscampaign_path:$PATH
  eval "$dscampaign_options"
fi
if [ "$dscampaign_name $(type -t conda)" = "conda file" ]; then eval "$(conda shell.bash hook)"; fi
dscampaign_failed=
""".strip()
"""Make the command known as a login shell would; programs that were on the PATH stay the first."""

_AFTER: Final = rf"""
for dscampaign_python in "$(command -v python)" "$(command -v python3)"; do
  case "$dscampaign_before" in
    *":$dscampaign_python:"*) ;;
    *) if [ -x "$dscampaign_python" ]; then export {SETUP_PYTHON}="$dscampaign_python"; break; fi ;;
  esac
done 2>/dev/null
""".strip()

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
    begin = [f"dscampaign_record={folder}/setup-{index}.json", f"dscampaign_login={shlex.quote(_LOGIN)}", _BEGIN]
    before, after = python_chosen(lines)
    return [before, *begin, *_checked(lines), after, "{ trap - ERR; } 2>/dev/null"]


def python_chosen(lines: Sequence[str]) -> tuple[str, str]:
    """Return the shell lines around ``lines`` that export the Python that they choose as `SETUP_PYTHON`."""
    return "dscampaign_before=" if any(map(_ACTIVATES.search, lines)) else _BEFORE, _AFTER


def _checked(lines: Sequence[str]) -> Iterator[str]:
    for number, text in whole_lines(tuple(lines)):
        head = json.dumps({"line": number, "text": text.strip()[:_SHOWN]})[:-1]
        yield "{ dscampaign_line=" + shlex.quote(head + ', "status": ') + "; } 2>/dev/null"
        if command := _COMMAND.match(text):
            yield f'{{ dscampaign_name={shlex.quote(command[1])}; eval "$dscampaign_login"; }} 2>/dev/null'
        yield text
        yield "{ dscampaign_check; } 2>/dev/null"
