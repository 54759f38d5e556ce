"""The job of a detached reconciler: its script, where it may run, and the queue's view of it."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.spec.slurm_syntax import slurm_minutes
from dscampaign.sbatch import Value, render

from .sbatch_answer import submission_error, submitted_id
from .slurm_commands import ask, run_sbatch

LONGEST_MIN = 1440
"""Time limit, unless the partition's is shorter."""


def place_of(partition: str | None) -> tuple[bool, int]:
    """Return whether all nodes of a partition are this machine, and a time limit in minutes; raise Unreachable."""
    chosen = [f"--partition={partition}"] if partition else []
    done = ask(["sinfo", "--noheader", "-N", *chosen, "-o", "%P|%n|%l"])
    rows = [fields for line in done.stdout.splitlines() if len(fields := line.split("|")) == 3]
    rows = rows if partition else [row for row in rows if row[0].endswith("*")] or rows
    here = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    limits = [minutes for row in rows if (minutes := slurm_minutes(row[2].strip()))]
    return bool(rows) and all(row[1] in here for row in rows), min([LONGEST_MIN, *limits])


def queued(name: str, *options: str) -> dict[str, str]:
    """Return the states of the jobs of a name that wait or run, by id, with reasons; raises Unreachable."""
    done = ask(["squeue", "--noheader", f"--name={name}", *options, "-o", "%A|%T|%r"])
    if done.returncode:
        raise Unreachable(f"squeue: {done.stderr.strip()}", "try again")
    rows = [fields for line in done.stdout.splitlines() if len(fields := line.split("|")) == 3]
    return {
        job_id: state if reason in ("", "None") else f"{state}, {reason}"
        for job_id, state, reason in rows
        if state != "COMPLETING"
    }


def submit(name: str, script: Path, command: Sequence[str], options: Mapping[str, str]) -> str:
    """Submit a script that submits itself again before its time limit; return its id, or raise as for attempts."""
    lines = [f"--{option}={shlex.quote(value)}" for option, value in options.items()]
    values: dict[str, Value] = {"name": name, "script": script, "log": script.with_suffix(".log"), "options": lines}
    values |= {"workdir": Path.cwd(), "reconcile": [shlex.join(command)]}
    write_atomically(script, render("reconciler.sbatch", values))
    done = run_sbatch(["sbatch", "--parsable", str(script)], options)
    if done.returncode:
        raise submission_error(done.stdout, done.stderr)
    return submitted_id(done.stdout)
