"""The status of a campaign, from the store alone. Reads no metrics and writes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sqlalchemy import Connection

from ...db import queries
from ...db.records import UNSETTLED_RUN, AttemptRow, CampaignRow, Lease, RunState, RunStatus
from ...db.store import Store
from ..reconcile.lease import LeaseHolder, lease_name


@dataclass(frozen=True)
class CampaignStatus:
    """A campaign at one moment of the store's clock, with its runs in the order of the matrix.

    Attributes:
        first_micro_batch: by run id, the first one of its present configuration; only of retried runs.
        reconciler: the campaign's lease, current or last.
    """

    campaign: CampaignRow
    runs: tuple[RunStatus, ...]
    first_micro_batch: dict[int, int | None]
    reconciler: Lease | None
    now_s: float

    @property
    def counts(self) -> dict[RunState, int]:
        """How many runs are in each state."""
        return Counter(run.state for run in self.runs)

    @property
    def settled(self) -> bool:
        """Whether every run is settled."""
        return not any(run.state in UNSETTLED_RUN for run in self.runs)

    @property
    def all_completed(self) -> bool:
        """Whether every run that the user did not cancel completed."""
        return all(run.state in (RunState.COMPLETED, RunState.CANCELLED) for run in self.runs)

    @property
    def reconciled_now(self) -> bool:
        """Whether a reconciler is active: it has the lease and is not known to have died."""
        lease = self.reconciler
        return lease is not None and lease.expires_s > self.now_s and not LeaseHolder.parse(lease.holder).dead


def read_status(store: Store, campaign: CampaignRow) -> CampaignStatus:
    """Reads a campaign's status in one transaction."""
    with store.read() as conn:
        rows = _with_nonfinite(conn, campaign.id, queries.status(conn, campaign.id))
        return CampaignStatus(
            campaign=campaign,
            runs=tuple(rows),
            first_micro_batch=_first_micro_batch(conn, campaign.id, rows),
            reconciler=queries.read_lease(conn, lease_name(campaign.id)),
            now_s=store.now(conn),
        )


def _with_nonfinite(conn: Connection, campaign_id: int, rows: list[RunStatus]) -> list[RunStatus]:
    """Adds losses that are not finite, which the status query does not return."""
    if all(row.step is None or row.loss is not None for row in rows):
        return rows
    latest = queries.latest(conn, campaign_id)
    return [row._replace(loss=latest[row.run_id].loss) if row.run_id in latest else row for row in rows]


def _first_micro_batch(conn: Connection, campaign_id: int, rows: list[RunStatus]) -> dict[int, int | None]:
    if all(row.generation <= 1 for row in rows):
        return {}
    attempts = queries.attempts_by_run(conn, campaign_id)
    return {run_id: _first_of_present(tried).micro_batch for run_id, tried in attempts.items()}


def _first_of_present(tried: list[AttemptRow]) -> AttemptRow:
    return next(attempt for attempt in tried if attempt.config_hash == tried[-1].config_hash)
