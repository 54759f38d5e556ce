"""Reads a campaign for a report, run by run: only the steps of a single run are in memory at a time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from dscampaign.db import queries
from dscampaign.db.campaigns import METRICS_SOURCE
from dscampaign.db.records import STEPS_BEYOND, STEPS_RESTARTED, SUBMITTING, CampaignRow, EventRow, thinning_of
from dscampaign.db.series import extra_highest, run_series
from dscampaign.db.store import Store
from dscampaign.orchestrator.commands import counted
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.reconcile.lease import looked_s

from .metrics import METRICS
from .neighbours import neighbours
from .run import MeasuredRun, RunData, measured_run

_SAID: Final = ("start", "speed", "memory")
_SKIPPED: Final = "skipped_steps"
_SEARCHED: Final = "script.micro_batch_search"
_PRINTED_WITHIN_S: Final = 2.5
"""Of lines that an earlier version has read, without their source."""


def figures_of(store: Store, campaign: CampaignRow, names: Collection[str]) -> dict[str, dict[str, float | None]]:
    """Return the figures of runs, by their names: those of the registry, and steps per second."""
    figures: dict[str, dict[str, float | None]] = {}
    for run in read_runs(store, campaign, names):
        step_s = run.timing.step_s if run.timing else None
        figures[run.name] = {name: metric.of(run) for name, metric in METRICS.items()}
        figures[run.name]["steps_per_s"] = 1 / step_s if step_s else None
    return figures


def read_runs(store: Store, campaign: CampaignRow, names: Collection[str] | None = None) -> list[MeasuredRun]:
    """The figures of every run, or of those of these names, in the order of the matrix."""
    measured = []
    with store.read() as conn:
        until_s = looked_s(conn, store.now(conn), campaign.id)
        ran = [row for row in queries.attempts(conn, campaign.id) if row.failure_class != FailureClass.RETURNED]
        beside = neighbours(ran)
        attempts = {run_id: list(own) for run_id, own in groupby(ran, lambda attempt: attempt.run_id)}
        events = queries.events(conn, campaign.id)
        reports = _said(events)
        not_taken: dict[int | None, dict[str, str]] = defaultdict(dict)
        for event in events:
            if event.kind in (STEPS_RESTARTED, STEPS_BEYOND):
                not_taken[event.attempt_id][event.kind] = event.message
        sources = {event.attempt_id: event.message for event in events if _names_source(event)}
        within_s = _lines_within_s(events)
        excluded = {event.attempt_id: event.data.get("exclude", ()) for event in events if event.kind == SUBMITTING}
        searched_s = {event.attempt_id: _seconds(event.data) for event in events if event.kind == _SEARCHED}
        forwards = queries.forwards(conn, campaign.id)
        sampled = queries.sampled_attempts(conn, campaign.id)
        skipped = extra_highest(conn, campaign.id, _SKIPPED)
        rows = [run for run in queries.runs(conn, campaign.id) if names is None or run.name in names]
        for run in counted("runs read", rows):
            own = attempts.get(run.id, [])
            present = [attempt for attempt in own if attempt.config_hash == run.config_hash]
            mine = [attempt.id for attempt in present]
            used = not sampled.isdisjoint(mine) or any(thinning_of(attempt.evidence) for attempt in present)
            data = RunData(
                run=run,
                attempts=own,
                series=run_series(conn, run.id, [(attempt.id, attempt.generation) for attempt in present]),
                gpus=queries.run_gpus(conn, run.id) if used else [],
                **{
                    name: next((reports[one, name] for one in mine[::-1] if (one, name) in reports), {})
                    for name in _SAID
                },
                excluded=excluded,
                skipped_steps=int(skipped[run.id]) if run.id in skipped else None,
                metrics_source=next((sources[one] for one in mine[::-1] if one in sources), ""),
                not_taken={kind: message for one in mine for kind, message in not_taken[one].items()},
                lines_within_s=max((within_s.get(one, 0.0) for one in mine), default=0.0),
                forwarded={tool: str(data.get("run_id", "")) for tool, data in forwards.get(run.id, {}).items()},
                until_s=until_s,
                searched_s=searched_s,
                neighbours=beside.get(run.id, 0.0),
            )
            measured.append(measured_run(data))
    return measured


def _names_source(event: EventRow) -> bool:
    return event.kind == METRICS_SOURCE and event.data.get("source") != "none"


def _seconds(data: Mapping[str, Any]) -> float:
    seconds = data.get("seconds")
    return float(seconds) if isinstance(seconds, int | float) and 0 <= seconds < math.inf else 0.0


def _lines_within_s(events: Sequence[EventRow]) -> dict[int | None, float]:
    """Return how late the time of a line may be, by attempt whose metrics the agent collected."""
    by_attempt: dict[int | None, float] = defaultdict(float)
    for event in events:
        if event.kind == METRICS_SOURCE:
            unsaid = _PRINTED_WITHIN_S if event.data.get("source", "printed") == "printed" else 0.0
            within_s = event.data.get("within_s")
            late_s = float(within_s) if isinstance(within_s, int | float) else unsaid
            by_attempt[event.attempt_id] = max(by_attempt[event.attempt_id], late_s)
    return by_attempt


def _said(events: Sequence[EventRow]) -> dict[tuple[int | None, str], dict[str, Any]]:
    """Return the fields of the trainer's events, by attempt and name of the event; the newest value counts."""
    kinds = {f"script.{name}": name for name in _SAID}
    reports: dict[tuple[int | None, str], dict[str, Any]] = defaultdict(dict)
    for event in events:
        if event.kind in kinds:
            reports[event.attempt_id, kinds[event.kind]] |= event.data
    return reports
