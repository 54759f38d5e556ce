"""All campaigns of a store, each in one line: user, progress, hours. Reads no metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from dscampaign.db import queries
from dscampaign.db.campaigns import CampaignTotals, campaign_totals
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import REMOVED
from dscampaign.db.store import Store
from dscampaign.orchestrator.reconcile.lease import looked_s
from dscampaign.orchestrator.spec.slurm_syntax import gpus_per_rank

from .selection import RunCounts


@dataclass(frozen=True)
class CampaignOverview:
    """A campaign, and the time since its last activity."""

    campaign: CampaignRow
    totals: CampaignTotals
    quiet_s: float

    @property
    def counts(self) -> RunCounts:
        """Its runs by state."""
        return RunCounts(self.totals.counts, self.totals.early)

    @property
    def user(self) -> str:
        """The user who submitted it last; "" if an earlier version recorded it."""
        return str(self.campaign.provenance.get("user", ""))

    @property
    def device_hours(self) -> float:
        """The hours of its attempts until the last look at its jobs: of GPUs, or of ranks without any."""
        used = self.totals.rank_seconds.items()
        executor = self.campaign.executor
        return sum(seconds * (gpus_per_rank(executor, *asked) or 1.0) for asked, seconds in used) / 3600

    @property
    def removed(self) -> bool:
        """Whether a removal has begun."""
        return self.campaign.desired == REMOVED


def read_overview(store: Store) -> list[CampaignOverview]:
    """Return all campaigns, the most recently active first."""
    with store.read() as conn:
        now_s = store.now(conn)
        found, totals = queries.list_campaigns(conn), campaign_totals(conn, cache(partial(looked_s, conn, now_s)))
    rows = []
    for campaign in found:
        own = totals.get(campaign.id, CampaignTotals({}, {}, 0, {}, None))
        rows.append(CampaignOverview(campaign, own, max(0.0, now_s - (own.active_s or campaign.created_s))))
    return sorted(rows, key=lambda row: row.quiet_s)


def overview_document(rows: list[CampaignOverview]) -> dict[str, Any]:
    """The list for `--json`."""
    return {
        "campaigns": [
            {
                "campaign": row.campaign.name,
                "user": row.user,
                "executor": row.campaign.executor,
                "dir": row.campaign.dir,
                "created_s": row.campaign.created_s,
                "last_activity_s": row.totals.active_s,
                "gpu_hours": row.device_hours,
                **row.counts.document(),
                "being_removed": row.removed,
            }
            for row in rows
        ]
    }
