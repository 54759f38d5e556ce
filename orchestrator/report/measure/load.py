"""Reads a campaign for a report, run by run: only the steps of a single run are in memory at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby

from sqlalchemy import Connection

from dscampaign.db import gpu_queries, metrics, queries
from dscampaign.db.records import AttemptRow, CampaignRow, EventRow, RunRow, thinning_of
from dscampaign.db.series import extra_highest, run_series
from dscampaign.db.states import ABSENT, Stage
from dscampaign.db.store import Store
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.lease import looked_s

from .metrics import METRICS
from .run import MeasuredRun, measured_run

FollowUp = tuple[RunRow, Mapping[str, float]]
"""A run that followed another, with the last values of its metrics."""


def figures_of(store: Store, campaign: CampaignRow, names: Collection[str]) -> dict[str, dict[str, float | None]]:
    """Return the figures of runs by their names: of the registry, and steps per second."""
    figures: dict[str, dict[str, float | None]] = {}
    for run in read_runs(store, campaign, names):
        step_s = run.timing.step_s if run.timing else None
        figures[run.name] = {name: metric.of(run) for name, metric in METRICS.items()}
        figures[run.name]["steps_per_s"] = 1 / step_s if step_s else None
    return figures


def read_runs(store: Store, campaign: CampaignRow, names: Collection[str] | None = None) -> list[MeasuredRun]:
    """Return the figures of every run, or of these names, in the order of the matrix."""
    measured = []
    with store.read() as conn:
        until_s = looked_s(conn, store.now(conn), campaign.id)
        ran = [row for row in queries.attempts(conn, campaign.id) if row.failure_class != FailureClass.RETURNED]
        beside = _neighbours(ran)
        attempts = {run_id: list(own) for run_id, own in groupby(ran, lambda attempt: attempt.run_id)}
        events = defaultdict[tuple[int | None, str], list[EventRow]](list)
        for event in queries.events(conn, campaign.id):
            events[event.attempt_id, event.kind].append(event)
        forwards = queries.forwards(conn, campaign.id)
        sampled = gpu_queries.sampled_attempts(conn, campaign.id)
        skipped = extra_highest(conn, campaign.id, "skipped_steps")
        rows = [run for run in queries.runs(conn, campaign.id) if names is None or run.name in names]
        for run in counted("runs read", rows):
            own = attempts.get(run.id, [])
            present = [attempt for attempt in own if attempt.config_hash == run.config_hash]
            used = any(attempt.id in sampled or thinning_of(attempt.evidence) for attempt in present)
            measured.append(
                measured_run(
                    run,
                    own,
                    events,
                    run_series(conn, run.id, [(attempt.id, attempt.generation) for attempt in present]),
                    gpu_queries.run_gpus(conn, run.id) if used else [],
                    until_s=until_s,
                    skipped_steps=int(skipped[run.id]) if run.id in skipped else None,
                    forwarded={tool: str(data.get("run_id", "")) for tool, data in forwards.get(run.id, {}).items()},
                    neighbours=beside.get(run.id, 0.0),
                )
            )
    return measured


def follow_ups_of(conn: Connection, campaign: CampaignRow) -> list[FollowUp]:
    """Return the follow-ups of a campaign's runs, in the order of their names."""
    rows = [row for row in queries.runs(conn, campaign.id) if row.stage is Stage.THEN and row.desired != ABSENT]
    figures = metrics.last_figures(conn, campaign.id, Stage.THEN) if rows else {}
    return [(row, figures.get(row.id, {})) for row in sorted(rows, key=lambda row: row.name)]


def _neighbours(attempts: Iterable[AttemptRow]) -> dict[int, float]:
    """Return how many others ran in its job at a time, on average, by run id: they may take its time."""
    jobs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for row in attempts:
        if row.task is not None and row.job_id and row.started_s and row.ended_s:
            jobs[row.job_id].append((row.started_s, row.ended_s, row.run_id))
    own_s, beside_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for spans in map(sorted, jobs.values()):
        for place, (start, end, run_id) in enumerate(spans):
            own_s[run_id] += end - start
            for later, until, other in spans[place + 1 :]:
                if later >= end:
                    break
                for each in (run_id, other):
                    beside_s[each] += min(end, until) - later
    return {run_id: seconds / own_s[run_id] for run_id, seconds in beside_s.items() if seconds > 0}
