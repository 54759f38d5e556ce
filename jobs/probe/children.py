"""Run programs with a time limit, and leave nothing of them behind."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.process_groups import signal_group
from dscampaign.jobs.shared.spool_steps import tail

_ERROR: Final = re.compile(r"^\s*(?:\[[^\]]*\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$")
_running: set[int] = set()  # process groups


class ChildFailed(Exception):
    """A program failed, or did not end in time; the message has its last line."""


def run(command: Sequence[str], env: Mapping[str, str], timeout_s: float, log: Path) -> None:
    """Run a program to its end, in the folder of its log, where nothing shadows a module.

    Raises ChildFailed: it ended badly, or not in time.
    """
    with open(log, "wb", opener=open_private) as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=log.parent,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as exc:
            raise ChildFailed(f"{command[0]}: {exc.strerror}") from exc
        _running.add(child.pid)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise ChildFailed(f"did not end within {timeout_s:.0f} s{_last_line(log)}") from exc
        finally:
            signal_group(child.pid)
            _running.discard(child.pid)
    if code:
        raise ChildFailed(f"ended with code {code}{_last_line(log)}")


def kill_all() -> None:
    """End all programs, with everything that they started."""
    for group in tuple(_running):
        signal_group(group)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in tail(log) if line.strip()]
    errors = [match[1] for line in lines if (match := _ERROR.match(line))]
    last = (errors or lines)[-1:]
    return f": {last[0]}" if last else ""
