"""The executor interface: how the reconciler submits, lists and cancels jobs. Implemented by `slurm` and `local`."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

TERMINAL_STATES = frozenset(
    """COMPLETED FAILED CANCELLED TIMEOUT DEADLINE OUT_OF_MEMORY PREEMPTED NODE_FAIL BOOT_FAIL GONE""".split()  # noqa: SIM905
)
"""Slurm's final states, and the final state of the local executor.

Slurm's flags, which squeue shows in place of the state, are not final: a job that is REVOKED may run on another cluster
of a federation, and a job that has LAUNCH_FAILED may be held in the queue. Nor are states of later versions.
"""

LIVE_PENDING = frozenset(
    """PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT LAUNCH_FAILED
    RECONFIG_FAIL EXPEDITING""".split()  # noqa: SIM905
)

ARRAY_LIMIT = 1000
"""Elements of a job array: Slurm's default limit (MaxArraySize) is 1001."""

NO_NODES: Final = ("", "None assigned")
"""Texts for the nodes of a job that has none."""


class JobView(NamedTuple):
    """One job as the executor sees it now: a tuple, as thousands are made at each look.

    Attributes:
        token, task: its attempt, by batch and number there, for any id.
        state: Slurm's term; ``GONE`` for a local process that has ended, and for a job that Slurm itself has lost.
        reason: why it is pending, in Slurm's term.
        cancelled_by: number of the user who cancelled it; None if nobody did, or nobody knows.
        step_out_of_memory: a step of it ran out of memory, which the job's own state may hide.
        inferred: derived from a line about its array, not about this task.
    """

    token: str
    task: int
    job_id: str
    state: str
    reason: str = ""
    submit_time_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    exit_code: str = ""
    nodes: str = ""
    step_out_of_memory: bool = False
    cancelled_by: int | None = None
    inferred: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the job is over. COMPLETING is not: its processes may still write."""
        return self.state in TERMINAL_STATES

    @property
    def pending(self) -> bool:
        """Whether it waits in the queue."""
        return self.state in LIVE_PENDING

    @property
    def never_began(self) -> bool:
        """Whether it is over and had no node. squeue shows its end as its beginning, too."""
        lasted = self.started_s is not None and self.ended_s is not None and self.started_s < self.ended_s
        return self.terminal and self.nodes in NO_NODES and not lasted

    @property
    def cancelled_in_queue(self) -> bool:
        """Whether it was cancelled before it had nodes."""
        return self.state == "CANCELLED" and self.nodes in NO_NODES


class WaitedJob(NamedTuple):
    """A job that waited in the queue when it was last seen, `ago_s` ago, and is known to be absent for `missed_s`."""

    token: str
    task: int
    job_id: str
    ago_s: float
    missed_s: float = 0.0


@dataclass(frozen=True)
class JobArray:
    """Attempts with equal resources, submitted as one job array; ``folder`` holds their payloads.

    A ``shared`` job runs several attempts, ``lanes`` at a time. Without a ``workdir`` it starts in this process's.
    """

    token: str
    folder: Path
    size: int
    resources: Mapping[str, Any] = field(default_factory=dict)
    program: str = "dscampaign.jobs.agent"
    workdir: str | None = None
    shared: bool = False
    lanes: int = 1


def owner(folder: Path | None) -> int:
    """Return the user who owns the jobs of a campaign in this folder; this user if the folder does not exist."""
    try:
        return folder.stat().st_uid if folder else os.geteuid()
    except OSError:
        return os.geteuid()


def own_python() -> list[str]:
    """Return the start of a command that runs our modules, which neither the folder nor `setup` may shadow."""
    alone = not any(os.environ.get(name) for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"))
    return [sys.executable, "-PE" if alone else "-P", "-u", "-m"]


class SubmissionRefused(Exception):
    """The executor rejected the batch for good. Nothing was submitted."""


class ArrayTooLarge(Exception):
    """Nothing was submitted: the batch is too large, `for_now` only because of other jobs of the user in the queue."""

    def __init__(self, message: str, *, for_now: bool) -> None:
        super().__init__(message)
        self.for_now = for_now


class SubmissionUnclear(Exception):
    """The batch may or may not have been submitted: list jobs before doing anything else.

    Args:
        full: Whether the cluster had no room for further jobs. If there is no job, that is nobody's fault.
        objects: Whether sbatch failed with an objection of its own: if there is no job, it refuses the batch for good.
    """

    def __init__(self, message: str, *, full: bool = False, objects: bool = False) -> None:
        super().__init__(message)
        self.full, self.objects = full, objects


@dataclass(frozen=True)
class JobListing:
    """The user's jobs that the executor knew at a single moment, by (token, index).

    Attributes:
        complete: Whether an absent job was looked for in the queue and in the accounting; else it is unknown.
        rivals: Attempts with several jobs, which are not among ``jobs``: only the claim separates them.
    """

    jobs: Mapping[tuple[str, int], JobView]
    complete: bool
    rivals: Mapping[tuple[str, int], Sequence[JobView]] = field(default_factory=dict)


class Executor(Protocol):
    """Where attempts run."""

    intent_grace_s: float
    """How long an unconfirmed submission may take to show up in ``list_jobs``."""
    lost_grace_s: float
    """How long a job may be absent from a complete ``list_jobs`` before it counts as lost."""
    outcome_grace_s: float
    """How long after a job's end its files may take to become visible here."""

    @property
    def user(self) -> int:
        """Id of the user whose jobs run; jobs of others are not listed."""

    def submit(self, batch: JobArray) -> list[str]:
        """Submit the batch as one job array; return the job id of each of its elements, in order.

        Raises SubmissionRefused, ArrayTooLarge, SubmissionUnclear; Unreachable or OSError if nothing was submitted.
        """

    def list_jobs(
        self, expected: Mapping[str, Collection[int]], since_s: float, waited: Iterable[WaitedJob] = ()
    ) -> JobListing:
        """Return the jobs of these batches (token → indexes), submitted after ``since_s``; raise Unreachable.

        `waited` is read only if a job is absent.
        """

    def nodes(self) -> int | None:
        """Return the number of nodes; None if not known."""

    def cluster(self) -> str:
        """Return the name of the cluster of all jobs; "" for none, or without an answer."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel these jobs, if they still exist; raise Unreachable."""
