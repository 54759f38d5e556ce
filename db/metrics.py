"""Reads metrics: every step once, from the highest attempt with the run's present configuration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, select

from .records import METRIC_COLUMNS, MetricRow, RunLatest, StepTimes
from .schema import PRESENT, attempt, metric_extra, run, run_latest, run_metric, step_metric
from .states import Stage

TIMED_STEPS = 1000
TIMED_ATTEMPTS = 8

_BY_BLOCK = {"yield_per": 5000}  # rows that are fetched at a time: a campaign may have millions
_COLUMNS = tuple(METRIC_COLUMNS.values())
_LINE_FIELDS = ("step", "ts_s", "step_time_s", "loss", "eval_loss", "grad_norm")
_METRIC_FIELDS = tuple(field.name for field in fields(MetricRow) if field.name != "extra")
_LATEST_FIELDS = tuple(field.name for field in fields(RunLatest))


def metrics(conn: Connection, run_id: int) -> Iterator[MetricRow]:
    """Yield a run's steps in order; reads block by block.

    If attempts overlap after a rollback, the highest counts; attempts with another configuration than the run has
    now do not count at all.
    """
    # both cursors go on together, this one over what the script named itself
    figure = metric_extra.c
    own_figures = select(figure.step, figure.attempt_id, figure.name, figure.value).order_by(figure.step)
    of_run = and_(attempt.c.id == figure.attempt_id, attempt.c.run_id == run_id)
    extras = groupby(conn.execute(own_figures.join(attempt, of_run), execution_options=_BY_BLOCK), key=itemgetter(0))
    step_extras = next(extras, None)
    columns = [run_metric.c[name] for name in _METRIC_FIELDS]
    query = select(run_metric.c.nonfinite, *columns).where(run_metric.c.run_id == run_id).order_by(run_metric.c.step)
    for mask, *values in conn.execute(query, execution_options=_BY_BLOCK):
        attempt_id, _generation, step = values[:3]
        while step_extras and step_extras[0] < step:
            step_extras = next(extras, None)
        own = step_extras[1] if step_extras and step_extras[0] == step else ()
        extra = {name: math.nan if value is None else value for _, owner, name, value in own if owner == attempt_id}
        yield MetricRow(*[*_restore(_METRIC_FIELDS, values, mask), extra])


def iter_metrics(conn: Connection, campaign_id: int) -> Iterator[tuple[int, MetricRow]]:
    """Yield all steps of a campaign as (run id, step), run by run in the order of the matrix; reads block by block."""
    query = select(run.c.id).where(run.c.campaign_id == campaign_id).order_by(run.c.ordinal, run.c.id)
    for run_id in conn.execute(query).scalars().all():
        for row in metrics(conn, run_id):
            yield run_id, row


def last_figures(conn: Connection, campaign_id: int, stage: Stage) -> dict[int, dict[str, float]]:
    """Return the last finite value of each metric of the runs of a stage, by run id: their losses and their own."""
    joined = run.join(attempt, and_(attempt.c.run_id == run.c.id, attempt.c.config_hash == run.c.config_hash))
    lines, extras = (joined.join(table, table.c.attempt_id == attempt.c.id) for table in (step_metric, metric_extra))
    of_stage = and_(run.c.campaign_id == campaign_id, run.c.stage == stage)
    figures: dict[int, dict[str, float]] = defaultdict(dict)
    losses = select(run.c.id, step_metric.c.loss, step_metric.c.eval_loss).select_from(lines).where(of_stage)
    for run_id, *values in conn.execute(losses.order_by(attempt.c.generation, step_metric.c.step)):
        pairs = zip(("loss", "eval_loss"), values, strict=True)
        figures[run_id] |= {name: value for name, value in pairs if value is not None}
    own = select(run.c.id, metric_extra.c.name, metric_extra.c.value).select_from(extras).where(of_stage)
    for run_id, name, value in conn.execute(own.order_by(attempt.c.generation, metric_extra.c.step)):
        figures[run_id] |= {} if value is None else {name: value}
    return dict(figures)


def extra_names(conn: Connection, campaign_id: int) -> list[str]:
    """Return the names of the figures that the scripts of a campaign named themselves, sorted."""
    query = select(metric_extra.c.name).distinct().join(attempt, attempt.c.id == metric_extra.c.attempt_id)
    query = query.join(run, run.c.id == attempt.c.run_id).where(run.c.campaign_id == campaign_id)
    return sorted(conn.execute(query).scalars())


def latest(conn: Connection, campaign_id: int, run_id: int | None = None) -> dict[int, RunLatest]:
    """Return the newest figures of each run of a campaign that has reported, or of a single run, by run id."""
    columns = [run_latest.c[name] for name in _LATEST_FIELDS]
    query = select(run_latest.c.nonfinite, *columns).join(run, run.c.id == run_latest.c.run_id)
    rows = conn.execute(query.where(run.c.campaign_id == campaign_id if run_id is None else run.c.id == run_id))
    return {values[0]: RunLatest(*_restore(_LATEST_FIELDS, values, mask)) for mask, *values in rows}


def step_times(conn: Connection, run_id: int) -> StepTimes:
    """Return how long the newest steps of a run's present configuration took, at most ``TIMED_STEPS`` of them.

    If a script does not report it, it is the time between two lines over the steps between them, checkpoints and
    evaluations included. Only the ends of the run's newest attempts are read.
    """
    mine = select(attempt.c.id).join(run, PRESENT).where(run.c.id == run_id)
    newest = mine.order_by(attempt.c.generation.desc()).limit(TIMED_ATTEMPTS)
    timed: list[tuple[float, int]] = []
    for attempt_id in conn.execute(newest).scalars().all():
        lines = newest_lines(conn, attempt_id, TIMED_STEPS - len(timed))
        timed += [(line.time_s, line.steps) for line in lines if line.time_s is not None]
    return StepTimes(_p99(time_s for time_s, _ in timed), len(timed), _p99(time_s * steps for time_s, steps in timed))


class NewestLine(NamedTuple):
    """A line of an attempt's metrics, with the figures that matter while it runs."""

    step: int
    # seconds of a step; if the script does not report it, the time over the steps since the line before
    time_s: float | None
    steps: int  # the distance to the line before
    # loss, eval_loss, grad_norm: NaN if the reported value is not finite
    loss: float | None
    eval_loss: float | None = None
    grad_norm: float | None = None


def newest_lines(conn: Connection, attempt_id: int, limit: int) -> list[NewestLine]:
    """Return an attempt's newest lines, the newest first."""
    row = step_metric.c
    query = select(row.nonfinite, *(row[name] for name in _LINE_FIELDS)).where(row.attempt_id == attempt_id)
    rows = conn.execute(query.order_by(row.step.desc()).limit(limit + 1)).all()
    lines = []
    for (mask, *values), before in zip_longest(rows, rows[1:]):
        step, ts_s, time_s, *figures = _restore(_LINE_FIELDS, values, mask)
        _, step_before, ts_before_s, *_ = before or (0, step - 1, None)  # the first line: nobody knows since when
        if time_s is None and ts_s is not None and ts_before_s is not None:
            time_s = (ts_s - ts_before_s) / (step - step_before)
        is_timed = time_s is not None and math.isfinite(time_s) and time_s >= 0
        lines.append(NewestLine(step, time_s if is_timed else None, step - step_before, *figures))
    return lines[:limit]


def _p99(times_s: Iterable[float]) -> float | None:
    ordered = sorted(times_s)
    return ordered[math.ceil(0.99 * len(ordered)) - 1] if ordered else None


def _restore(names: tuple[str, ...], values: list[Any], mask: int) -> list[Any]:
    """Restore values that SQLite cannot hold: NULL with its bit set in the mask is NaN."""
    if mask:
        for index, name in enumerate(names):
            if values[index] is None and name in _COLUMNS and mask >> _COLUMNS.index(name) & 1:
                values[index] = math.nan
    return values
