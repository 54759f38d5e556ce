"""A live view's data: a store's campaigns, runs, curves and events, read again and again at little cost.

Only reads. Figures and texts are as in `campaign status` and `campaign explain`. Texts come from scripts and specs,
without control characters; whoever shows them escapes markup.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sqlalchemy import Connection

from dscampaign.db import campaigns, queries
from dscampaign.db.records import CampaignRow, EventRow, RunStatus
from dscampaign.db.series import Curve, run_curve
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.activity import turn
from dscampaign.orchestrator.campaign.selection import find
from dscampaign.orchestrator.campaign.status import (
    MOST_FINAL,
    MOST_WATCHED,
    CampaignOverview,
    CampaignStatus,
    read_overview,
    read_status,
    with_final_figures,
)
from dscampaign.orchestrator.campaign.titles import titles_of
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.pages.rows import ShownRun, shown_run
from dscampaign.orchestrator.spec.slurm_syntax import gpus_per_rank

if TYPE_CHECKING:
    from dscampaign.orchestrator.report.compare.results import Results

SPARK, CHART = 60, 500
"""Most points of a curve: in a row of a table, and of a chart."""

EVENTS: Final = 50
"""Events that a view shows."""

LATEST: Final = 1 << 62
"""As `since`: no rows, only the status."""

STALE_S: Final = 10.0
"""After so long the campaign is read again though no run changed: ages, and the reconciler's lease."""


class Changes(NamedTuple):
    """A campaign's runs that changed since a version."""

    # pass it as `since` to get only later changes. Versions of another process are older or newer, never equal, so that
    # an unknown one yields all runs
    version: int
    whole: bool  # `runs` are all runs in the order of the matrix: forget the others. Else replace runs of the same id.
    runs: list[ShownRun]
    status: CampaignStatus  # the campaign at this moment, with all runs: headline, causes of failures, the reconciler


@dataclass(frozen=True)
class _Known:
    """A campaign as it was read: each run with the version of its last change; titles and GPUs, which hardly change."""

    mark: tuple[Any, ...]
    status: CampaignStatus
    read_s: float
    titles: Mapping[str, str]
    gpus: Mapping[int, float | None]
    rows: Mapping[int, tuple[int, ShownRun]]
    whole_since: int


class LiveStore:
    """A store as live views read it. Its methods may be called from any thread, one at a time does its work.

    All raise StoreError while the store is away, and UserError for a campaign that does not exist. For `fresh_s` what
    was read of a campaign is taken as it was; for ever, all of it is of one moment.
    """

    def __init__(self, store: Store, fresh_s: float = 0.0) -> None:
        self.store, self._fresh_s = store, fresh_s
        self._version = time.time_ns() // 1_000_000
        self._known: dict[int, _Known] = {}
        self._results: dict[int, tuple[tuple[Any, ...], Results]] = {}
        self._curves: dict[tuple[int, int], tuple[tuple[int, int | None], Curve]] = {}
        self._lock = RLock()

    def campaigns(self) -> list[CampaignOverview]:
        """Return all campaigns that are not being removed, the most recently active first."""
        return [row for row in read_overview(self.store) if not row.removed]

    def runs(self, campaign: str | None, since: int = 0) -> Changes:
        """Return the runs of a campaign, or of the only campaign, that changed after version `since`; all for 0.

        Reads the rows of the runs only if any may have changed: else it costs a query of sums.
        """
        with self._lock:
            row = find(self.store, campaign)
            known = self._read(row)
            whole = since != LATEST and not known.whole_since <= since <= self._version
            chosen = (run for version, run in known.rows.values() if whole or version > since)
            return Changes(self._version, whole, list(chosen), known.status)

    def curves(self, campaign: str | None, runs: Collection[str], points: int = SPARK) -> dict[str, Curve]:
        """Return the curves of the named runs by name, without runs that have no step: for the rows in sight.

        `points` is the most points of a curve, `SPARK` or `CHART`.
        """
        wanted = set(runs)
        with self._lock:
            known = self._read(find(self.store, campaign))
            with self.store.read() as conn:  # later than the newest step that is known
                return {
                    run.name: self._curve(conn, run, points)
                    for run in known.status.runs
                    if run.step is not None and run.name in wanted
                }

    def events(self, campaign: str | None, since: int = 0, limit: int = EVENTS) -> list[tuple[EventRow, str]]:
        """Return the newest events of a campaign with an id above `since`, oldest first, with the names of their runs.

        The name is "" if an event is about the whole campaign.
        """
        with self._lock:
            row = find(self.store, campaign)
            names = {run.run_id: run.name for run in self._read(row).status.runs}
        with self.store.read() as conn:
            events = queries.events(conn, row.id, limit=limit, after=since)
        return [(event, names.get(event.run_id or 0, "")) for event in events]

    def results(self, campaign: str | None) -> Results | None:
        """Return the results as `campaign report` reads them, kept until a run changes: 10 ms a run, needs the extra.

        None without a completed run, and of more than 2,000 runs. Call it apart from what a user waits for.
        """
        with self._lock:
            known = self._read(find(self.store, campaign))
        status, before = known.status, self._results.get(known.status.campaign.id)
        if not status.counts.completed or len(status.runs) > MOST_FINAL:
            return None
        if before and before[0] == known.mark:
            return before[1]
        from dscampaign.orchestrator.report.compare.results import results_of
        from dscampaign.orchestrator.report.measure.load import read_runs

        found = results_of(status.campaign, read_runs(self.store, status.campaign))
        self._results[status.campaign.id] = known.mark, found
        return found

    def _curve(self, conn: Connection, run: RunStatus, points: int) -> Curve:
        """Return the curve that was read before, with the steps since then."""
        last, key, mark = max(run.target_step or 0, run.step or 0), (run.run_id, points), (run.generation, run.step)
        before, curve = self._curves.get(key, ((0, None), None))
        if curve is None or before != mark:
            begun = curve.begin_of_last if curve and before[0] == run.generation else 0
            newer = run_curve(conn, run.run_id, last, points, begun)
            if begun and curve:
                same = newer.width == curve.width
                newer = curve.followed_by(newer) if same else run_curve(conn, run.run_id, last, points)
            curve = newer
            self._curves[key] = mark, curve
        return curve

    def _read(self, campaign: CampaignRow) -> _Known:
        known = self._known.get(campaign.id)
        if known and time.monotonic() - known.read_s < self._fresh_s:
            return known
        with self.store.read() as conn:
            mark = (campaign.spec_hash, *queries.status_mark(conn, campaign.id))
        if known is None or known.mark != mark or time.monotonic() - known.read_s > STALE_S:
            known = self._known[campaign.id] = self._refreshed(campaign, mark, known)
        return known

    def _refreshed(self, campaign: CampaignRow, mark: tuple[Any, ...], known: _Known | None) -> _Known:
        status = with_final_figures(self.store, read_status(self.store, campaign), MOST_WATCHED)
        self._version += 1
        titles: Mapping[str, str]
        gpus: Mapping[int, float | None]
        if known is None or len(known.rows) != len(status.runs) or known.mark[0] != mark[0]:
            with self.store.read() as conn:
                titles = titles_of(queries.params_of_first_repeats(conn, campaign.id))
                asked = campaigns.asked(conn, campaign.id) if campaign.executor == "slurm" else {}
            per_rank = cache(partial(gpus_per_rank, campaign.executor))
            gpus = {run_id: per_rank(*own) for run_id, own in asked.items()}
            known, whole_since = None, self._version
        else:
            titles, gpus, whole_since = known.titles, known.gpus, known.whole_since
        waits, rows = turn(status), {}
        for run in status.runs:
            title, own = clean(titles.get(run.condition, run.condition)), gpus.get(run.run_id)
            all_gpus = run.world_size * own if run.world_size and own else None
            shown = shown_run(run, status, waits=waits, title=title, gpus=all_gpus)
            before = known.rows.get(run.run_id) if known else None
            rows[run.run_id] = before if before and before[1] == shown else (self._version, shown)
        return _Known(mark, status, time.monotonic(), titles, gpus, rows, whole_since)
