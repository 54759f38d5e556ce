"""Slurm's commands: the only place that runs them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from dscampaign.jobs.shared.variables import inheritable
from dscampaign.orchestrator.errors import Unreachable

from .sbatch_answer import interrupted

COMMAND_TIMEOUT_S = 60.0
LOOK_S = 2.5
"""How long a command of Slurm's may take where a user waits for a plan: without a configuration it takes a minute."""

SITE_DEFAULTS = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT")
"""SBATCH_* variables that a user or a site may set if the spec does not: they overrule a script."""

_DEFAULTS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_")
"""A user's own settings, such as a partition, would hide jobs and nodes from us, and keep jobs from being cancelled."""

_OTHER_CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
"""Variables that send a command to another cluster, where no other process would find its jobs."""

NO_ACCOUNTING = re.compile(r"accounting storage is disabled", re.IGNORECASE)

_PATIENCE_S: ContextVar[float | None] = ContextVar("patience_s", default=None)
_BEFORE_EACH: ContextVar[Callable[[], object] | None] = ContextVar("before_each", default=None)


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Limit the time of each Slurm command that is run inside, for looks that somebody waits for."""
    before = _PATIENCE_S.set(seconds)
    try:
        yield
    finally:
        _PATIENCE_S.reset(before)


@contextmanager
def before_each_command(happens: Callable[[], object]) -> Iterator[None]:
    """Call this before every Slurm command that is run inside: together they may outlast a lease."""
    outside = _BEFORE_EACH.set(happens)
    try:
        yield
    finally:
        _BEFORE_EACH.reset(outside)


def _patience_s() -> float:
    return _PATIENCE_S.get() or COMMAND_TIMEOUT_S


class TimedOut(Unreachable):
    """A command timed out."""


class OtherCluster(Unreachable):
    """The shell asks for jobs on another cluster than that of its slurm.conf, which alone is looked at."""


def ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that may be repeated; raise Unreachable if it timed out, or is not installed."""
    own = {k: v for k, v in os.environ.items() if not k.startswith(_DEFAULTS) and k not in _OTHER_CLUSTERS}
    try:
        return _run(command, {**own, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C"})
    except subprocess.TimeoutExpired as exc:
        raise TimedOut(f"{command[0]} did not respond within {_patience_s():.0f} s") from exc


def run_sbatch(command: list[str], options: Collection[str]) -> subprocess.CompletedProcess[str]:
    """Run sbatch; the spec decides these options.

    Raises SubmissionUnclear if it timed out, OtherCluster if it would submit elsewhere, or Unreachable.
    """
    _require_own_cluster()
    kept = [f"SBATCH_{name}" for name in SITE_DEFAULTS if name.lower() not in options]
    try:  # in a reconciler job, sbatch would take that job's variables for options
        return _run(command, inheritable(os.environ, kept))
    except subprocess.TimeoutExpired as exc:
        raise interrupted(_patience_s(), exc.stderr or b"") from exc


def _require_own_cluster() -> None:
    """A reconciler may lack the shell's variable, such as in cron, and would look on another cluster."""
    requested = {name: os.environ[name] for name in _OTHER_CLUSTERS if os.environ.get(name)}
    if not requested:
        return
    own = own_cluster()
    for name, clusters in requested.items():
        if clusters.casefold() != own.casefold():
            raise OtherCluster(
                f"{name} is {clusters}, but a campaign uses one cluster, here {own}",
                f"`unset {name}` to use {own}; to use another, work on its login node, or with its SLURM_CONF",
            )


def own_cluster() -> str:
    """Return the name of the cluster of slurm.conf. Raises Unreachable if Slurm does not name it."""
    config = ask(["scontrol", "show", "config"])
    match = re.search(r"^ClusterName\s*=\s*(\S+)", config.stdout, re.MULTILINE)
    if match is None:
        raise Unreachable(f"scontrol does not name this cluster: {config.stderr.strip()}", "the next pass tries again")
    return match[1]


def _run(command: list[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    if happens := _BEFORE_EACH.get():
        happens()
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=env, timeout=_patience_s(), check=False
        )
    except FileNotFoundError as exc:
        hint = "is this a login node of a Slurm cluster? `executor: local` needs none"
        raise Unreachable(f"{command[0]} is not on PATH", hint) from exc
    except OSError as exc:
        raise Unreachable(f"cannot run {command[0]}: {exc.strerror}", "the next pass tries again") from exc
