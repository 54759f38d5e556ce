"""Slurm's commands: the one place that runs them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import Unreachable
from .base import SubmissionUnclear, outside_of_jobs

COMMAND_TIMEOUT_S = 60.0
LOOK_S = 2.5
"""How long a command of Slurm's may take where a user waits for a plan: without a configuration it takes a minute."""

SITE_DEFAULTS = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT")
"""What a user's or a site's SBATCH_* variables may decide where the spec does not. They would overrule a script."""

NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)

_PATIENCE_S: ContextVar[float | None] = ContextVar("patience_s", default=None)
_BEFORE_EACH: ContextVar[Callable[[], object] | None] = ContextVar("before_each", default=None)


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Has every command of Slurm's that is run inside answer within that time, for looks that somebody waits for."""
    before = _PATIENCE_S.set(seconds)
    try:
        yield
    finally:
        _PATIENCE_S.reset(before)


@contextmanager
def before_each_command(happens: Callable[[], object]) -> Iterator[None]:
    """Has something done before every command of Slurm's that is run inside: together they may outlast a lease."""
    outside = _BEFORE_EACH.set(happens)
    try:
        yield
    finally:
        _BEFORE_EACH.reset(outside)


def _patience_s() -> float:
    return _PATIENCE_S.get() or COMMAND_TIMEOUT_S


class TimedOut(Unreachable):
    """A command timed out."""


def ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command that may be repeated.

    Raises:
        Unreachable: it timed out, or is not installed.
    """
    # the user's own defaults, such as one partition alone, would hide jobs and nodes from us
    own = {k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    try:
        return _run(command, {**own, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"})
    except subprocess.TimeoutExpired as exc:
        raise TimedOut(f"{command[0]} did not respond within {_patience_s():.0f} s") from exc


def run_sbatch(command: list[str], given: Collection[str]) -> subprocess.CompletedProcess[str]:
    """Runs sbatch; `given` are the parameters that the spec decides.

    Raises:
        SubmissionUnclear: it timed out.
        Unreachable: it is not there.
    """
    kept = [f"SBATCH_{name}" for name in SITE_DEFAULTS if name.lower() not in given]
    try:  # in a reconciler job, sbatch would take that job's variables for options
        return _run(command, outside_of_jobs(os.environ, kept))
    except subprocess.TimeoutExpired as exc:
        raise SubmissionUnclear(f"sbatch did not respond within {_patience_s():.0f} s") from exc


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    if happens := _BEFORE_EACH.get():
        happens()
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=_patience_s(),
            check=False,
        )
    except FileNotFoundError as exc:
        hint = "is this a login node of a Slurm cluster? `executor: local` needs none"
        raise Unreachable(f"{command[0]} is not on PATH", hint) from exc
    except OSError as exc:
        raise Unreachable(f"cannot run {command[0]}: {exc.strerror}", "the next pass tries again") from exc
