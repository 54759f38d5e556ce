"""Where a campaign stands, from the store alone. Reads no metrics and writes nothing."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from ...db import queries
from ...db.records import UNSETTLED_RUN, AttemptRow, CampaignRow, Lease, RunRow, RunState, RunStatus
from ...db.store import Store
from ..reconcile.lease import LeaseHolder, lease_name

SCHEMA_VERSION: Final = 1
"""Of every JSON document that the command prints. Fields are only ever added."""


@dataclass(frozen=True)
class CampaignStatus:
    """A campaign at one moment of the store's clock.

    Attributes:
        runs: in the order of the matrix.
        first_micro_batch: by run id, what a run's present configuration began with; only of runs tried more than once.
        reconciler: who holds the campaign's lease, or held it last.
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
        """Whether nothing is left that this program would do."""
        return not any(run.state in UNSETTLED_RUN for run in self.runs)

    @property
    def all_completed(self) -> bool:
        """Whether every run reached its target; a cancelled one was taken out by the user."""
        return all(run.state in (RunState.COMPLETED, RunState.CANCELLED) for run in self.runs)

    @property
    def reconciled_now(self) -> bool:
        """Whether a reconciler is at work: it has the lease, and is not known to have died."""
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


def status_document(store: Store, campaign: CampaignRow) -> dict[str, Any]:
    """The status as one document for `--json`."""
    status = read_status(store, campaign)
    with store.read() as conn:
        runs = {run.id: run for run in queries.runs(conn, campaign.id)}
        attempts = _by_run(queries.attempts(conn, campaign.id))
        forwards = queries.forwards(conn, campaign.id)
    return {
        "schema_version": SCHEMA_VERSION,
        "campaign": campaign.name,
        "settled": status.settled,
        "reconciled_now": status.reconciled_now,
        "counts": {str(state): status.counts.get(state, 0) for state in RunState},
        "runs": [_run_document(row, runs[row.run_id], attempts[row.run_id], forwards) for row in status.runs],
    }


def batch_of(run: RunRow) -> dict[str, int | None]:
    """A run's batch arithmetic as its spec asks for it, before any attempt made the micro-batch smaller."""
    config, train = run.config, run.config.get("train", {})
    nodes = 1 if config.get("executor") == "local" else config.get("slurm", {}).get("nodes", 1)
    world_size = nodes * config.get("ranks_per_node", 1)
    batch, micro = train.get("global_batch"), train.get("micro_batch")
    accumulation = batch // (micro * world_size) if batch and micro else None
    return {"global_batch": batch, "micro_batch": micro, "accumulation": accumulation, "world_size": world_size}


def finite(value: float | None) -> float | str | None:
    """A number that strict JSON can hold: NaN and the infinities become their names."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _run_document(
    row: RunStatus, run: RunRow, attempts: list[AttemptRow], forwards: Mapping[int, Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    now = {"micro_batch": row.micro_batch, "accumulation": row.accumulation, "world_size": row.world_size}
    return {
        "name": row.name,
        "params": run.params,
        "state": row.state,
        "reason": row.reason,
        "step": row.step,
        "target_step": row.target_step,
        "loss": finite(row.loss),
        "eval_loss": finite(row.eval_loss),
        "tokens_per_s": finite(row.tokens_per_s),
        "mem_reserved_gb": finite(row.mem_reserved_gb),
        "mfu": finite(row.mfu),
        **batch_of(run),
        **{name: value for name, value in now.items() if value is not None},
        "changes": row.changes or "",
        "predicted_gb": attempts[-1].predicted_gb if attempts else None,
        "forwarded": {
            tool: {name: str(data.get(name, "")) for name in ("run_id", "where")}
            for tool, data in forwards.get(row.run_id, {}).items()
        },
        "attempts": [_attempt_document(attempt) for attempt in attempts],
    }


def _attempt_document(row: AttemptRow) -> dict[str, Any]:
    return {
        "generation": row.generation,
        "state": row.state,
        "failure_class": row.failure_class,
        "job_id": row.job_id,
        "micro_batch": row.micro_batch,
        "accumulation": row.accumulation,
        "changes": row.changes,
        "predicted_gb": row.predicted_gb,
        "start_step": row.start_step,
        "last_step": row.last_step,
    }


def _with_nonfinite(conn: Connection, campaign_id: int, rows: list[RunStatus]) -> list[RunStatus]:
    """The light query shows a loss that is not a number as none at all."""
    if all(row.step is None or row.loss is not None for row in rows):
        return rows
    latest = queries.latest(conn, campaign_id)
    return [row._replace(loss=latest[row.run_id].loss) if row.run_id in latest else row for row in rows]


def _first_micro_batch(conn: Connection, campaign_id: int, rows: list[RunStatus]) -> dict[int, int | None]:
    if all(row.generation <= 1 for row in rows):
        return {}
    attempts = _by_run(queries.attempts(conn, campaign_id))
    return {run_id: _first_of_present(tried).micro_batch for run_id, tried in attempts.items()}


def _first_of_present(tried: list[AttemptRow]) -> AttemptRow:
    return next(attempt for attempt in tried if attempt.config_hash == tried[-1].config_hash)


def _by_run(rows: list[AttemptRow]) -> dict[int, list[AttemptRow]]:
    attempts: dict[int, list[AttemptRow]] = defaultdict(list)
    for row in rows:
        attempts[row.run_id].append(row)
    return attempts
