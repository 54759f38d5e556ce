"""The reconcile loop: drain, observe, decide, act, under a lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...db import queries
from ...db.errors import StaleLease, StoreUnreachable
from ...db.ingest.attempt import AttemptSpools, drain_attempt
from ...db.ingest.metrics import METRICS
from ...db.records import AttemptRow, CampaignRow, StepTimes
from ...db.store import Store
from ...jobs.shared.layout import CampaignPaths
from ..errors import Unreachable
from ..executors.base import Executor
from ..executors.job_request import attempt_paths
from .act import act
from .actions import Action, Finish
from .decide import decide, settled
from .lease import FencedWriter, LeaseHeld, LeaseHolder, release_lease, take_lease
from .observe import observe, read_store
from .set_aside import give_up_spool
from .snapshot import Snapshot

LATE_S = 3600.0
"""How long after an attempt's end its metrics may still become readable."""

SLURM_POLL_S = 10.0
LOCAL_POLL_S = 1.0


@dataclass(frozen=True)
class Pass:
    """What one pass saw and did; `settled` if nothing is left to do, `troubles` are what failed for now."""

    snapshot: Snapshot
    actions: tuple[Action, ...]
    settled: bool
    troubles: tuple[Unreachable, ...]


class Reconciler:
    """Brings one campaign to its desired state, pass by pass; the default executor is the one that its spec names."""

    def __init__(self, store: Store, campaign: CampaignRow, executor: Executor | None = None) -> None:
        self._store, self._campaign = store, campaign
        self.paths = CampaignPaths(Path(campaign.dir), campaign.name)
        self._executor = executor or make_executor(campaign, self.paths)
        self._holder = LeaseHolder.me()

    @property
    def poll_s(self) -> float:
        """Seconds between two passes of a watch: Slurm's controller serves others too."""
        return SLURM_POLL_S if self._campaign.executor == "slurm" else LOCAL_POLL_S

    def run_pass(self) -> Pass:
        """One pass.

        Raises:
            LeaseHeld: another reconciler is at work.
            Unreachable: the shared folder cannot be read.
            StoreUnreachable: the store did not respond; nothing is lost, the next pass continues.
            StaleLease: another reconciler took over in the middle.
        """
        writer = take_lease(self._store, self._campaign, self._holder)
        troubles = drain(writer, self._newest_attempts(), self._executor.outcome_grace_s)
        stored = read_store(self._store, self._campaign)
        snapshot, trouble = observe(stored, self._executor, self.paths, self._step_times)
        actions = decide(snapshot)
        troubles += [trouble] if trouble else []
        troubles += act(actions, writer, self._executor, self.paths)
        ended = [action.attempt for action in actions if isinstance(action, Finish)]
        troubles += drain(writer, ended, self._executor.outcome_grace_s)
        return Pass(snapshot, tuple(actions), not actions and not troubles and settled(snapshot), tuple(troubles))

    def watch(
        self, *, sleep: Callable[[float], None] = time.sleep, poll_s: float | None = None
    ) -> Iterator[Pass | Exception]:
        """Passes until everything is settled.

        Where the store or the folder is unreachable, or another reconciler has the lease, yields the error and waits.
        """
        while True:
            try:
                done = self.run_pass()
                yield done
                if done.settled:
                    return
            except (StoreUnreachable, LeaseHeld, StaleLease, Unreachable) as exc:
                yield exc
            sleep(poll_s or self.poll_s)

    def _newest_attempts(self) -> list[AttemptRow]:
        """The two newest attempts of each run, and those that ended recently.

        The last may still write; of those before, files may have arrived late or been unreadable for a while.
        """
        with self._store.read() as conn:
            attempts, late_s = queries.attempts_by_run(conn, self._campaign.id), self._store.now(conn) - LATE_S
        return [
            row
            for rows in attempts.values()
            for back, row in enumerate(reversed(rows))
            if back < 2 or float(row.evidence.get("seen_s") or row.ended_s or 0.0) > late_s
        ]

    def _step_times(self, run_id: int) -> StepTimes:
        with self._store.read() as conn:
            return queries.step_times(conn, run_id)

    def close(self) -> None:
        """Releases the lease."""
        release_lease(self._store, self._campaign, self._holder)


def make_executor(campaign: CampaignRow, paths: CampaignPaths) -> Executor:
    """The executor that the campaign's spec names."""
    if campaign.executor == "local":
        from ..executors.local import LocalExecutor  # imported here, as below: a command needs one of them

        return LocalExecutor(paths.dir / "batches")
    from ..executors.slurm import SlurmExecutor

    return SlurmExecutor()


def drain(writer: FencedWriter, rows: Sequence[AttemptRow], grace_s: float) -> list[Unreachable]:
    """Ingests what the agents have not pushed into the store, each attempt's by itself.

    Args:
        writer: of the campaign.
        rows: the attempts.
        grace_s: how long files may take to become visible here.

    Returns:
        The spools that cannot be read for now; one of which that lasts is said in an event, and passed over.
    """
    if not rows:
        return []
    troubles = []
    with writer.store.read() as conn:
        offsets = queries.node_offsets(conn, [row.id for row in rows])
    for row in rows:
        paths = attempt_paths(row)
        gpus = [paths.gpu_spool(node) for node in range(row.nodes)]
        spools = AttemptSpools(row.id, paths.metrics, paths.forward_spool, gpus)
        try:
            drain_attempt(writer.store, spools, {METRICS: row.spool_offset, **offsets.get(row.id, {})})
        except StoreUnreachable:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever it is, it is this attempt's alone
            troubles.append(give_up_spool(row, exc, writer, grace_s))
    return [trouble for trouble in troubles if trouble]
