"""Reads the details of a campaign or a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dscampaign.db import queries
from dscampaign.db.gpu_records import AttemptGpus
from dscampaign.db.records import (
    COMPLETED_EARLY,
    AttemptRow,
    CampaignRow,
    CheckpointRow,
    EventRow,
    MemoryObservation,
    RunLatest,
    RunRow,
    RunStatus,
)
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import CampaignPaths, RunPaths

from .status import CampaignStatus, read_status, with_final_figures

RECENT_EVENTS = 20


@dataclass(frozen=True)
class CampaignDetails:
    """A campaign with its newest events."""

    status: CampaignStatus
    store: str
    events: tuple[EventRow, ...]
    run_names: dict[int, str]


@dataclass(frozen=True)
class RunDetails:
    """A run with its attempts and events, oldest first, and its checkpoints, newest first.

    `memory`, which its ranks reported, and `gpus`, where they were sampled, are by attempt id.
    """

    campaign: CampaignRow
    status: CampaignStatus
    run: RunRow
    now: RunStatus
    latest: RunLatest | None
    attempts: tuple[AttemptRow, ...]
    checkpoints: tuple[CheckpointRow, ...]
    events: tuple[EventRow, ...]
    paths: RunPaths
    memory: dict[int, MemoryObservation]
    gpus: dict[int, AttemptGpus]

    @property
    def early(self) -> bool:
        """Whether it completed before its target step."""
        newest = self.attempts[-1].failure_class if self.attempts else None
        return self.run.state is RunState.COMPLETED and newest == COMPLETED_EARLY


def campaign_details(store: Store, campaign: CampaignRow) -> CampaignDetails:
    """Read the details of a campaign."""
    status = read_status(store, campaign)
    with store.read() as conn:
        events = queries.events(conn, campaign.id, limit=RECENT_EVENTS)
    names = {run.run_id: run.name for run in status.runs}
    return CampaignDetails(status, store.url_without_password, tuple(events), names)


def run_details(store: Store, campaign: CampaignRow, run: RunRow) -> RunDetails:
    """Read the details of a run."""
    status = with_final_figures(store, read_status(store, campaign))
    with store.read() as conn:
        attempts = tuple(queries.attempts(conn, campaign.id, run.id))
        used = (queries.attempt_gpus(conn, attempt.id) for attempt in attempts)
        return RunDetails(
            campaign=campaign,
            status=status,
            run=run,
            now=next(row for row in status.runs if row.run_id == run.id),
            latest=queries.latest(conn, campaign.id).get(run.id),
            attempts=attempts,
            checkpoints=tuple(queries.checkpoints(conn, run.id)),
            events=tuple(queries.events(conn, campaign.id, run.id)),
            memory={seen.attempt_id: seen for seen in queries.memory_of_run(conn, run.id) if not seen.oom},
            gpus={found.attempt_id: found for found in used if found},
            paths=CampaignPaths(Path(campaign.dir), campaign.name).run(run.name),
        )
