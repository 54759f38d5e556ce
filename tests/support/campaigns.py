"""Running a campaign to its end inside a test, as `campaign submit --watch` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dscampaign.db import metrics, queries
from dscampaign.db.records import AttemptRow, CampaignRow, EventRow, MetricRow, RunRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.orchestrator.report.measure.load import figures_of
from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.spec_files import load_runs
from dscampaign.tests.support.waiting import CAMPAIGN_HANGS_S

TEXT = REPOSITORY / "examples" / "data" / "wikitext.txt"


@dataclass(frozen=True)
class Observed:
    """What the store holds of a campaign."""

    store: Store
    campaign: CampaignRow
    runs: dict[str, RunRow]
    attempts: dict[str, list[AttemptRow]]

    def states(self) -> dict[str, RunState]:
        return {name: run.state for name, run in self.runs.items()}

    def metrics(self, name: str) -> list[MetricRow]:
        """The run's steps, each from its highest attempt."""
        with self.store.read() as conn:
            return list(metrics.metrics(conn, self.runs[name].id))

    def steps(self, name: str) -> list[int]:
        return [row.step for row in self.metrics(name)]

    def events(self) -> list[EventRow]:
        with self.store.read() as conn:
            return queries.events(conn, self.campaign.id)


def batch_of(attempt: AttemptRow) -> tuple[int, int]:
    """(micro-batch, global batch) that the attempt trained with."""
    assert attempt.micro_batch is not None
    assert attempt.accumulation is not None
    return attempt.micro_batch, attempt.micro_batch * attempt.accumulation * attempt.world_size


def open_store(url: str) -> Store:
    """A store with its tables."""
    if url.startswith("sqlite"):
        return Store.open(url, create=True)
    store = Store.open(url, check_schema=False)
    upgrade(store)
    return store


def submit(spec: Path, folder: Path, store: Store) -> CampaignRow:
    """Records what a spec desires."""
    read, runs = load_runs(spec)
    return campaigns.record(store, Submission(read, spec.read_text(), runs, folder, spec))


def observe(store: Store, campaign: CampaignRow) -> Observed:
    """Reads the campaign's runs and attempts."""
    with store.read() as conn:
        runs = {run.name: run for run in queries.runs(conn, campaign.id)}
        attempts = {name: queries.attempts(conn, campaign.id, run.id) for name, run in runs.items()}
    return Observed(store, campaign, runs, attempts)


def run_to_end(
    store: Store,
    campaign: CampaignRow,
    *,
    each_pass: Callable[[Observed], None] = lambda _: None,
    each_error: Callable[[Exception], None] | None = None,
    poll_s: float = 1.0,
) -> Observed:
    """Passes until the campaign is settled; calls `each_pass` after each, or `each_error` if the store is away."""
    deadline_s = time.monotonic() + CAMPAIGN_HANGS_S
    reconciler = Reconciler(store, campaign, measure=figures_of)
    for done in reconciler.watch(poll_s=poll_s):
        if isinstance(done, Exception):
            if each_error is None:
                raise done
            each_error(done)
            continue
        if time.monotonic() > deadline_s:
            seen = observe(store, campaign)
            raise AssertionError(f"not settled: {[(r.name, r.state, r.reason) for r in seen.runs.values()]}")
        each_pass(observe(store, campaign))
    reconciler.close()
    return observe(store, campaign)
