"""The status of a campaign, from the store alone. Reads no metrics and writes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, Self

from sqlalchemy import Connection

from dscampaign.db import campaigns, leases, metrics, queries
from dscampaign.db.campaigns import CampaignTotals, MetricsSource, campaign_totals
from dscampaign.db.records import CampaignRow, Lease, RunStatus
from dscampaign.db.series import final_losses, final_speeds
from dscampaign.db.states import REMOVED, UNSETTLED_RUN, RunState, Stage
from dscampaign.db.store import Store
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.failures.groups import alike, cause
from dscampaign.orchestrator.formatting import count, figure, html_table
from dscampaign.orchestrator.reconcile.forecast import UNKNOWN, TimeLeft, time_left
from dscampaign.orchestrator.reconcile.lease import STANDING, LeaseHolder, lease_name, looked_s
from dscampaign.orchestrator.spec.slurm_syntax import gpus_per_rank

from .detach import jobs_in_queue
from .selection import RunCounts, Selection
from .titles import titles_of

MOST_FINAL, MOST_WATCHED = 2000, 200
"""Runs whose last steps are read for a status, and again and again for a watched one."""

LOOKED_S = 120.0  # the age up to which the activities that a reconciler saw are shown as present
TROUBLED: Final = (RunState.FAILED, RunState.HELD)  # the user has to look
WORST_FIRST: Final = (*TROUBLED, RunState.RUNNING, RunState.QUEUED, RunState.PENDING)

NO_METRICS: Final = (
    "the script reported no metrics. Add to it: from dscampaign import report, and after each step: "
    r"report(step, loss=loss). Or give the spec patterns: metrics: {step: 'step (\d+)', loss: 'loss ([\d.]+)'}; "
    "or set train.steps, so that a count like [1/24] is a step; or lower logging_steps of the Hugging Face Trainer"
)


def no_metrics(names: Sequence[str], campaign: str = "") -> str:
    """Return the advice for runs that ended without reporting any step; in short if a `campaign` is given."""
    others = f" and {count(len(names) - 1, 'other')}" if len(names) > 1 else ""
    brief = f"no metrics were reported, see `{typed('explain', campaign, names[0])}`"
    return f"{names[0]}{others}: {brief if campaign else NO_METRICS}"


@dataclass(frozen=True)
class CampaignStatus:
    """A campaign at a single moment of the store's clock, with its runs in the order of the matrix."""

    campaign: CampaignRow
    runs: tuple[RunStatus, ...]
    first_micro_batch: dict[int, int | None]  # by run id, the first of its present configuration; only of retried runs
    reconciler: Lease | None  # the campaign's lease, current or last
    now_s: float
    rules: dict[int, str] = field(default_factory=dict)  # by run id, the rule that found why it failed or is held
    left: TimeLeft = UNKNOWN  # how long the campaign and its running runs will still take
    # by run id, where its metrics come from, of runs whose script does not report them
    sources: Mapping[int, MetricsSource] = field(default_factory=dict)
    # of conditions by their names, once they are read, see `with_titles`
    titles: Mapping[str, str] = field(default_factory=dict)
    standing: Lease | None = None  # likewise the lease of the process that looks after all campaigns
    # states of detached reconcilers in Slurm's queue, by job id; None if they are not known
    queue: Mapping[str, str] | None = None

    def of(self, chosen: Selection) -> Self:
        """The status with these runs alone."""
        return replace(self, runs=tuple(chosen.of(self.runs)))

    @property
    def counts(self) -> RunCounts:
        """How many runs are in each state, and how many completed early."""
        return RunCounts.of(self.runs)

    @property
    def shown_counts(self) -> dict[str, int]:
        """How many runs are in each state, and how many are being cancelled."""
        return Counter(run.shown for run in self.runs)

    @property
    def ends_s(self) -> float | None:
        """When the campaign will likely be over, in epoch seconds; None if unknown."""
        return None if self.left.seconds is None else self.now_s + self.left.seconds

    @property
    def settled(self) -> bool:
        """Whether every run is settled, and no trials or follow-ups are to come."""
        return not self.campaign.grows and not any(run.state in UNSETTLED_RUN for run in self.runs)

    @property
    def all_completed(self) -> bool:
        """Whether every run completed that was not cancelled or left out; trials may fail if others completed."""
        tried = any(run.stage is Stage.TRIAL and run.state is RunState.COMPLETED for run in self.runs)
        states = {run.state for run in self.runs if run.stage is not Stage.TRIAL or not tried}
        return states <= {RunState.COMPLETED, RunState.CANCELLED, RunState.SCREENED, RunState.PRUNED}

    @property
    def silent(self) -> list[str]:
        """Runs that completed without reporting any step."""
        return [run.name for run in self.runs if run.state is RunState.COMPLETED and run.step is None]

    @property
    def acting(self) -> LeaseHolder | None:
        """The active reconciler: it has the lease and is not known to have died."""
        current = [lease for lease in (self.standing, self.reconciler) if lease and lease.expires_s > self.now_s]
        for holder, name in ((LeaseHolder.parse(lease.holder), lease.name) for lease in current):
            begins = name == STANDING and holder.starts
            idle = holder.job and self.queue is not None and self.queue.get(holder.job) != "RUNNING"
            if not (begins or idle or holder.dead):
                return holder
        return None

    @property
    def sentence(self) -> str:
        """The number of runs in each state: `sweep: 3 completed, 1 failed`."""
        counts = ", ".join(f"{number:,} {state}" for state, number in self.shown_counts.items())
        return f"{self.campaign.name}: {counts}"

    def __repr__(self) -> str:
        return f"<status of {self.sentence}>"

    def _repr_html_(self) -> str:
        header = ("run", "state", "step", "loss", "tokens/s", "memory (GB)", "reason")
        rows = [
            (run.name, run.shown, *map(figure, (run.step, run.loss, run.tokens_per_s, run.mem_reserved_gb)), run.reason)
            for run in self.runs
        ]
        return html_table(self.sentence, header, rows)


def failures_of(status: CampaignStatus) -> list[list[RunStatus]]:
    """Return the runs that failed or are held, grouped by cause, the largest group first."""
    troubled = [run for run in status.runs if run.state in TROUBLED]

    def key(run: RunStatus) -> Hashable:
        return run.state, cause(run.failure_class, status.rules.get(run.run_id, ""), run.reason, run.name)

    return sorted(alike(troubled, key), key=len, reverse=True)


def badness(state: str) -> int:
    """Return the place of a state in `WORST_FIRST`, the last for others."""
    return WORST_FIRST.index(RunState(state)) if state in WORST_FIRST else len(WORST_FIRST)


def with_final_figures(store: Store, status: CampaignStatus, most: int = MOST_FINAL) -> CampaignStatus:
    """Return the status with titles, final losses and speeds; beyond `most` runs, with reported speeds alone."""
    few = len(status.runs) <= most
    status = with_titles(store, status) if few else status
    with store.read() as conn:
        losses = final_losses(conn, status.campaign.id) if few else {}
        speeds = final_speeds(conn, status.campaign.id, [run.run_id for run in status.runs if few])
    own = ((run, losses.get(run.run_id, run.loss), speeds.get(run.run_id, {})) for run in status.runs)
    return replace(status, runs=tuple(run._replace(loss=loss, **speed) for run, loss, speed in own))


def with_titles(store: Store, status: CampaignStatus) -> CampaignStatus:
    """Return the status with the titles of its conditions: a page of conditions, or of a search, names them."""
    if status.titles or not (status.campaign.provenance.get("search") or any(run.repeat for run in status.runs)):
        return status
    with store.read() as conn:
        params = queries.params_of_first_repeats(conn, status.campaign.id)
    return replace(status, titles=titles_of(params))


def with_queue(store: Store, status: CampaignStatus) -> CampaignStatus:
    """Return the status with the detached reconcilers in Slurm's queue, if their states matter."""
    holder = status.acting
    if status.settled or status.campaign.executor != "slurm" or (holder and not holder.job):
        return status
    return replace(status, queue=jobs_in_queue(store))


def read_status(store: Store, campaign: CampaignRow) -> CampaignStatus:
    """Read a campaign's status in a single transaction."""
    with store.read() as conn:
        rows = queries.status(conn, campaign.id)
        if any(row.step is not None and row.loss is None for row in rows):  # the loss may be infinite, or none
            latest = metrics.latest(conn, campaign.id)
            rows = [row._replace(loss=latest[row.run_id].loss) if row.run_id in latest else row for row in rows]
        now_s = store.now(conn)
        return CampaignStatus(
            campaign=queries.campaign_by_id(conn, campaign.id) or campaign,
            runs=tuple(rows),
            first_micro_batch=_first_micro_batch(conn, campaign.id, rows),
            reconciler=leases.read_lease(conn, lease_name(campaign.id)),
            standing=leases.read_lease(conn, STANDING),
            now_s=now_s,
            left=time_left(conn, campaign.id, rows, now_s),
            sources=campaigns.metrics_sources(conn, campaign.id),
            rules=campaigns.failure_rules(conn, campaign.id) if any(row.state in TROUBLED for row in rows) else {},
        )


def _first_micro_batch(conn: Connection, campaign_id: int, rows: list[RunStatus]) -> dict[int, int | None]:
    if all(row.generation <= 1 for row in rows):
        return {}
    first: dict[int, int | None] = {}
    for run_id, tried in queries.attempts_by_run(conn, campaign_id).items():
        present = (attempt for attempt in tried if attempt.config_hash == tried[-1].config_hash)
        first[run_id] = next((attempt.micro_batch for attempt in present if attempt.micro_batch), None)
    return first


# -- all campaigns ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CampaignOverview:
    """A campaign, and the time since its last activity."""

    campaign: CampaignRow
    totals: CampaignTotals
    quiet_s: float

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.campaign.name

    @property
    def counts(self) -> RunCounts:
        """Its runs by state."""
        return RunCounts(self.totals.counts, self.totals.early)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.campaign.grows or any(self.totals.counts.get(state) for state in UNSETTLED_RUN))

    @property
    def user(self) -> str:
        """The user who submitted it last; "" if an earlier version recorded it."""
        return str(self.campaign.provenance.get("user", ""))

    @property
    def device_hours(self) -> float:
        """The hours of its attempts until the last look at its jobs: of GPUs, or of ranks without any."""
        used = self.totals.rank_seconds.items()
        executor = self.campaign.executor
        return sum(seconds * (gpus_per_rank(executor, *resources) or 1.0) for resources, seconds in used) / 3600

    @property
    def removed(self) -> bool:
        """Whether a removal has begun."""
        return self.campaign.desired == REMOVED


def read_overview(store: Store) -> list[CampaignOverview]:
    """Return all campaigns, the most recently active first."""
    with store.read() as conn:
        now_s = store.now(conn)
        campaigns, totals = queries.list_campaigns(conn), campaign_totals(conn, cache(partial(looked_s, conn, now_s)))
    rows = []
    for campaign in campaigns:
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
