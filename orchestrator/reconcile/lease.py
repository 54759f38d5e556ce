"""The right to act for a campaign: one reconciler at a time, by a lease in the store whose epoch fences every write.

The store's clock decides when a lease expires; then another reconciler may take it, and all further writes of the one
before are refused (`StaleLease`). The work itself renews the lease, not a thread: a pass that hangs loses it.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from sqlalchemy import Connection

from dscampaign.db import leases, queries
from dscampaign.db.errors import SchemaMismatch, StoreIncomplete
from dscampaign.db.records import AttemptRow, CampaignRow
from dscampaign.db.states import ACTIVE_ATTEMPT, Cause, CauseCode, RunState
from dscampaign.db.store import Store, check_version
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import words

_T = TypeVar("_T")

LEASE_TTL_S = 120.0  # longer than a single step of a pass may take, such as one call of sbatch
RENEWED_SHARE = 0.25  # share of that time after which the lease is renewed between two steps

STANDING: Final = "reconciler"
"""Name of the lease of the process that looks after all campaigns of the store, also those that are yet to come."""

JOB_PREFIX: Final = "dscampaign-reconciler-"  # begins the name of the job of a detached reconciler


class LeaseHeld(UserError):
    """Another reconciler has the lease. Nothing is wrong: it does the same work."""


def lease_name(campaign_id: int) -> str:
    """Return the name of the lease of a campaign's reconciler."""
    return f"reconciler:{campaign_id}"


def looked_s(conn: Connection, now_s: float, campaign_id: int) -> float:
    """Return the time of the last look at running jobs: now while a reconciler holds the lease, else its end."""
    lease = leases.read_lease(conn, lease_name(campaign_id))
    return now_s if lease is None else min(now_s, lease.expires_s)


@dataclass(frozen=True)
class LeaseHolder:
    """A process that reconciles, kept as `host:pid:id`; if it is detached in a job, the id ends in `.JOB`."""

    host: str
    pid: str
    id: str

    @classmethod
    def me(cls) -> Self:
        """Return this process, as a reconciler."""
        return cls(socket.gethostname(), str(os.getpid()), f"{uuid.uuid4().hex[:8]}{_own_job()}")

    @classmethod
    def standing(cls) -> Self:
        """Return this process, as the holder of `STANDING`: its starter can name it, too."""
        job = _own_job()
        return cls("", "", job) if job else cls(socket.gethostname(), str(os.getpid()), "")

    @classmethod
    def of_job(cls, job_id: str) -> Self:
        """Return the holder of `STANDING` in a job."""
        return cls("", "", f".{job_id}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the stored text."""
        host, pid, own = text.split(":")
        return cls(host, pid, own)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.id}"

    @property
    def job(self) -> str:
        """The id of its job; "" for a process that is not a detached reconciler in a job."""
        return self.id.partition(".")[2]

    @property
    def starts(self) -> bool:
        """Of the holder of `STANDING`: whether it is about to start the process that is to have it."""
        return bool(self.id) and not self.job

    @property
    def shown(self) -> str:
        """`job 4711`, or `pid 4242 on login7`."""
        return f"job {self.job}" if self.job else f"pid {self.pid} on {self.host}"

    @property
    def dead(self) -> bool:
        """Whether it is known to have died: it ran on this host, which has no such process."""
        return self.host == socket.gethostname() and not Path("/proc", self.pid).exists()


def _own_job() -> str:
    mine = os.environ.get("SLURM_JOB_NAME", "").startswith(JOB_PREFIX)
    return f".{os.environ.get('SLURM_JOB_ID', '')}" if mine else ""


@dataclass
class FencedWriter:
    """The right to act for a campaign: a lease and its epoch, the fencing token that every write checks."""

    store: Store
    lease: str
    epoch: int
    campaign_id: int

    def __post_init__(self) -> None:
        self._renewed_s = time.monotonic()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a write transaction, which renews the lease; raises StaleLease if another reconciler took over."""
        began_s = time.monotonic()
        with self.store.write() as conn:
            _require_schema(conn)
            leases.renew_lease(conn, self.lease, self.epoch, LEASE_TTL_S)
            yield conn
        self._renewed_s = began_s

    def renewing(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and renew the lease between them; raises StaleLease as `write`."""
        for item in items:
            self.renew()
            yield item

    def renew(self) -> None:
        """Renew the lease if it is time to; raises StaleLease as `write`."""
        if time.monotonic() - self._renewed_s > RENEWED_SHARE * LEASE_TTL_S:
            with self.write():
                pass

    def report(self, looked_s: float | None = None, *, heard: bool = False, trouble: str) -> None:
        """Keep the observations of this pass for `campaign status`, see `Lease`; raises StaleLease as `write`."""
        with self.write() as conn:
            leases.report_pass(conn, self.lease, looked_s, heard=heard, trouble=trouble)

    def event(self, conn: Connection, kind: str, message: str, row: AttemptRow) -> None:
        """Add an event about an attempt."""
        queries.add_event(conn, self.campaign_id, kind, message, run_id=row.run_id, attempt_id=row.id)

    def end_unrun(self, conn: Connection, row: AttemptRow, kind: FailureClass, reason: str, rule: str = "") -> None:
        """End an attempt that no job has run or ever will."""
        evidence = {"reason": reason, "hint": "", **({"rule": rule} if rule else {})}
        values = {"failure_class": kind, "evidence": evidence, "ended_s": self.store.now(conn)}
        if queries.update_attempt(conn, row.id, expect_states=ACTIVE_ATTEMPT, state=kind.policy.attempt, **values):
            self.event(conn, "ended", f"attempt {row.generation}: {words(kind)}: {reason}", row)

    def end_refused(self, conn: Connection, row: AttemptRow, answer: str) -> None:
        """Fail a run whose job sbatch refused."""
        reason = f"sbatch refused it: {answer}"
        self.end_unrun(conn, row, FailureClass.REFUSED, reason)
        cause = Cause(CauseCode.REFUSED)
        queries.update_run(conn, row.run_id, state=RunState.FAILED, reason=reason, cause=cause)


def take_lease(store: Store, campaign: CampaignRow, holder: LeaseHolder) -> FencedWriter:
    """Take or renew the campaign's lease, also from a process that died. Raises LeaseHeld if another process has it."""
    name = lease_name(campaign.id)
    with store.write() as conn:
        _require_schema(conn)
        epoch, other = acquire(conn, name, holder)
    if epoch is None:
        hint = "it applies the change on its next pass; if it has died, another can take over within two minutes"
        raise LeaseHeld(f"campaign {campaign.name} is being reconciled by {other.shown}", hint)
    return FencedWriter(store, name, epoch, campaign.id)


def acquire(
    conn: Connection, name: str, holder: LeaseHolder, gone: Collection[str] = ()
) -> tuple[int | None, LeaseHolder]:
    """Take or renew a lease, also from a job that is `gone`; return its epoch, or None and its present holder."""
    if epoch := leases.acquire_lease(conn, name, str(holder), LEASE_TTL_S):
        return epoch, holder
    held = leases.read_lease(conn, name)
    other = LeaseHolder.parse(held.holder) if held else LeaseHolder("another host", "?", "")
    if held and (other.dead or other.job in gone):
        leases.release_lease(conn, name, held.epoch)
        return leases.acquire_lease(conn, name, str(holder), LEASE_TTL_S), other
    return None, other


def _require_schema(conn: Connection) -> None:
    """Another version may have upgraded the store since it was opened. Without a schema, it is being restored."""
    try:
        check_version(conn)
    except SchemaMismatch as error:
        if error.found is None:
            raise StoreIncomplete(error.message, "the next try waits until it is restored") from error
        raise


def release_lease(store: Store, campaign: CampaignRow, holder: LeaseHolder, after_s: float = 0.0) -> None:
    """Release the lease, if this process still has it, at once or after so long."""
    with store.write() as conn:
        release(conn, lease_name(campaign.id), holder, after_s)


def release(conn: Connection, name: str, holder: LeaseHolder, after_s: float = 0.0) -> None:
    """Release a lease, if this holder still has it, at once or after so long."""
    lease = leases.read_lease(conn, name)
    if lease and lease.holder == str(holder):
        leases.release_lease(conn, name, lease.epoch, after_s)
