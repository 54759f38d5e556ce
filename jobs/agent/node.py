"""This node's place in the job, and where its ranks meet. The only module that reads Slurm's variables for it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from dscampaign.files.atomic_files import read_json
from dscampaign.jobs.shared.documents import Count, Document, Number, Time, Whole
from dscampaign.jobs.shared.layout import AttemptPaths

POLL_S = 0.2


class RendezvousTimeout(Exception):
    """Node 0 did not announce the start in time."""


@dataclass(frozen=True)
class Node:
    """This node's place in the job: `rank` 0 claims the attempt and hosts the rendezvous."""

    job_id: str  # Slurm's ``ARRAYJOB_INDEX``, or ``local-HOST-PID``
    rank: int
    name: str
    visible_devices: str  # Slurm's choice of GPUs for this job, "" for none
    restarts: int = 0  # how often Slurm has ended the job and started it again

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Node:
        """Read Slurm's variables, or describe this machine if there is no Slurm job."""
        name = env.get("SLURMD_NODENAME") or socket.gethostname()
        devices = env.get("CUDA_VISIBLE_DEVICES", "")
        if "SLURM_JOB_ID" not in env:
            return cls(f"local-{socket.gethostname()}-{os.getpid()}", 0, name, devices)
        job_id = env["SLURM_JOB_ID"]
        if array := env.get("SLURM_ARRAY_JOB_ID"):
            job_id = f"{array}_{env['SLURM_ARRAY_TASK_ID']}"
        restarts = int(env.get("SLURM_RESTART_COUNT") or 0)
        return cls(job_id, int(env.get("SLURM_NODEID", "0")), name, devices, restarts)

    def address(self, nodes: int) -> str:
        """Return an address under which the job's other nodes reach this node."""
        return "127.0.0.1" if nodes == 1 else self.reachable_address() or socket.gethostname()

    def reachable_address(self) -> str | None:
        """Return an address of this node that is not only its own; None if there is none."""
        candidates = (*_addresses(self.name), *_addresses(socket.gethostname()))  # Slurm's node names need not resolve
        return next(filter(_is_reachable, candidates), None)


def _addresses(name: str) -> list[str]:
    """Resolve a name here, IPv4 first: not every library knows IPv6."""
    with suppress(OSError):
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return [str(address[0]) for *_, address in sorted(entries, key=lambda entry: entry[0] != socket.AF_INET)]
    return []


def _is_reachable(address: str) -> bool:
    """Debian's /etc/hosts gives a machine's own name a loopback address."""
    with suppress(ValueError):
        parsed = ip_address(address)
        return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)
    return False  # of one interface only, as `fe80::1%eth0`


def free_port() -> int:
    """Return a TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Start(Document):
    """The start of an attempt that node 0 decides for all nodes. Older files may lack fields with defaults."""

    job_id: str
    host: str
    address: str
    port: Number
    resume: str  # folder of the verified checkpoint to start from, or ""
    start_step: Whole | None  # that checkpoint's step, 0 for none; None for a script that keeps checkpoints of its own
    started_s: Time
    # micro_batch, accumulation: the actual sizes, see ``resize.json``; None while the ranks search for them
    micro_batch: Count | None = None
    accumulation: Count | None = None
    search_from: Count | None = None  # the micro-batch from which the ranks search; None if they train
    restarts: Whole = 0  # of the job; distinguishes this start from an earlier start that Slurm has ended
    token: str = ""
    config_hash: str = ""
    generation: Whole = 0


def join(paths: AttemptPaths, node: Node, timeout_s: float, lost: Callable[[], bool] = lambda: False) -> Start | None:
    """Wait for the decision of node 0 of the same job, on the other nodes; return None if it is `lost`.

    Raises RendezvousTimeout: node 0 gave no sign of life for ``timeout_s``. Verifying a large checkpoint takes longer,
    but it shows.
    """
    deadline, newest = time.monotonic() + timeout_s, read_json(paths.heartbeat(0))
    while time.monotonic() < deadline:
        start = Start.read(paths.started)
        if start and (start.job_id, start.restarts) == (node.job_id, node.restarts):
            return start
        if lost():
            return None
        if (beat := read_json(paths.heartbeat(0))) != newest:
            deadline, newest = time.monotonic() + timeout_s, beat
        time.sleep(POLL_S)
    silent = f"node 0 of job {node.job_id} did not announce itself, and gave no sign of life for {timeout_s:.0f} s"
    raise RendezvousTimeout(silent)
