"""Attempts as processes of this machine. The process table is the queue: a process that is not there has ended.

An agent carries its token in its command line, so one scan of /proc shows all that run, of any submitter.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from dscampaign.db.records import AttemptRow
from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.nvml import Unavailable, listed, session
from dscampaign.jobs.shared.variables import inheritable
from dscampaign.orchestrator.errors import Unreachable

from .base import JobArray, JobListing, JobView, SubmissionUnclear, WaitedJob, own_python, owner
from .setup_lines import guarded

AGENT = "dscampaign.jobs.agent"
EXAMINE = "dscampaign.jobs.probe.examine"
PROGRAMS = frozenset({AGENT, EXAMINE})
"""Programs of a batch: an agent, or the look at a node by `campaign doctor`."""
HOST_FILE = "host"
OF_THE_SITE = frozenset({"SLURM_TMPDIR"})
"""Variables for the scratch folder of a job, also of attempts on this machine."""
EXEC_TRIES = 200
"""Milliseconds for which a process may be between two programs, without a command line, before it counts as none."""
KERNEL_THREAD = 0x00200000


@functools.cache
def local_gpus() -> int:
    """Return the NVIDIA GPUs of this machine that a process started here may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in listed(visible) if device != "-1"])
    try:
        with session() as nvml:
            return int(nvml.nvmlDeviceGetCount())
    except Unavailable:
        return 0


class LocalExecutor:
    """Runs agents in the background, which outlive this process, for batches in a campaign's folder."""

    intent_grace_s = 0.0
    lost_grace_s = 0.0
    outcome_grace_s = 0.0

    def __init__(self, batches: Path) -> None:
        self._batches = batches
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def user(self) -> int:
        """Whose processes are listed: the owner of the batches."""
        return owner(self._batches)

    def submit(self, batch: JobArray) -> list[str]:
        """Start one agent for each element of the batch."""
        if batch.workdir and not Path(batch.workdir).is_dir():
            raise Unreachable(f"{batch.workdir}, the folder in which attempts start, does not exist")
        write_atomically(batch.folder / HOST_FILE, socket.gethostname())
        setup = batch.resources.get("setup") or ()
        started = len(self._children)
        try:
            return [self._start(batch, index, setup) for index in range(batch.size)]
        except OSError as exc:
            if some := len(self._children) - started:
                raise SubmissionUnclear(f"only {some} of {batch.size} processes started: {exc}") from exc
            raise Unreachable(f"cannot start a process: {exc}") from exc

    def list_jobs(
        self,
        expected: Mapping[str, Collection[int]],
        since_s: float,  # noqa: ARG002
        waited: Iterable[WaitedJob] = (),  # noqa: ARG002
    ) -> JobListing:
        """Scan the process table once."""
        running = _agents(self.user)
        for child in self._children:
            child.poll()  # a zombie is no agent
        jobs, rivals, complete = {}, {}, True
        for token, indexes in expected.items():
            file = self._batches / token / HOST_FILE
            local = not file.exists() or file.read_text() == socket.gethostname()
            complete = complete and local
            for index in indexes:
                host, pids = socket.gethostname(), running.get((token, index), ())
                views = [JobView(token, index, _job_id(pid), "RUNNING", nodes=host) for pid in pids]
                if len(views) > 1:
                    rivals[token, index] = views
                elif views:
                    [jobs[token, index]] = views
                elif local:
                    jobs[token, index] = JobView(token, index, "", "GONE")
        return JobListing(jobs, complete, rivals)

    def cluster(self) -> str:
        """Return none: the id of a process names its machine."""
        return ""

    def nodes(self) -> int | None:
        """This machine."""
        return 1

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Signal the agents to end their ranks and exit."""
        ours = {_job_id(pid): pid for pids in _agents(self.user).values() for pid in pids}
        for job_id in job_ids:
            if job_id in ours:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ours[job_id], signal.SIGTERM)

    def _start(self, batch: JobArray, index: int, setup: Sequence[str]) -> str:
        agent = [*own_python(), batch.program, str(batch.folder), str(index)]
        script = "\n".join([*guarded(setup, batch.folder, str(index)), 'exec "$@"'])
        with open(batch.folder / f"{index}.log", "ab", opener=open_private) as log:
            child = subprocess.Popen(
                ["bash", "-c", script, "campaign", *agent],
                cwd=batch.workdir,
                env=inheritable(os.environ, OF_THE_SITE),  # under `salloc`, else, that job would seem to claim it
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal is for the reconciler, not for training
            )
        self._children.append(child)
        return _job_id(child.pid)


def _job_id(pid: int | str) -> str:
    return f"local-{socket.gethostname()}-{pid}"


def local_elsewhere(row: AttemptRow) -> bool:
    """Return whether an attempt was started without Slurm on another machine, whose processes nobody sees here."""
    return row.executor == "local" and row.job_id is not None and not row.job_id.startswith(_job_id(""))


def _agents(user: int) -> dict[tuple[str, int], list[int]]:
    # A child that an agent has just forked still has its command line: agents are those whose parents have none like
    # it.
    agents: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (agent := _agent(Path(entry.path), user)):
            key, parent = agent
            agents[key][int(entry.name)] = parent
    return {key: [pid for pid, up in pids.items() if up not in pids] for key, pids in agents.items()}


def _agent(process: Path, user: int) -> tuple[tuple[str, int], int] | None:
    try:
        if process.stat().st_uid != user:
            return None
        words = _command_line(process)
        if PROGRAMS.isdisjoint(words) or not words[-1].isdigit():
            return None
        return (Path(words[-2]).name, int(words[-1])), int(_stat(process)[1])
    except OSError:
        return None  # ended between the listing and the look


def _command_line(process: Path) -> list[str]:
    """Wait while it changes from one program to the next: then it has none."""
    for _ in range(EXEC_TRIES):
        raw = (process / "cmdline").read_bytes()
        if raw or not _has_program(process):
            return raw.decode(errors="replace").rstrip("\0").split("\0")
        time.sleep(0.001)
    return []


def _has_program(process: Path) -> bool:
    # The flags are why this reads /proc itself: psutil cannot separate such a thread from a process between two
    # programs.
    fields = _stat(process)
    return fields[0] not in "ZXx" and not int(fields[6]) & KERNEL_THREAD


def _stat(process: Path) -> list[str]:
    """Return its fields from the state on: the second is the parent, the seventh the flags (proc(5))."""
    return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
