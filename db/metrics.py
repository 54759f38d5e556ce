"""Reading metrics: every step once, from the highest attempt with the run's present configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, and_, select

from .records import METRIC_COLUMNS, MetricRow, RunLatest
from .schema import attempt, metric_extra, run, run_latest, run_metric

_BY_BLOCK = {"yield_per": 5000}
"""Rows that are fetched at a time: a campaign may have millions."""

_COLUMNS = tuple(METRIC_COLUMNS.values())
_METRIC_FIELDS = tuple(field.name for field in fields(MetricRow) if field.name != "extra")
_LATEST_FIELDS = tuple(field.name for field in fields(RunLatest))


def metrics(conn: Connection, run_id: int) -> list[MetricRow]:
    """A run's steps in order.

    Where attempts overlap after a rollback the highest one counts; attempts with another configuration than the run
    has now do not count at all.
    """
    return list(_stream(conn, run_id))


def iter_metrics(conn: Connection, campaign_id: int) -> Iterator[tuple[int, MetricRow]]:
    """All steps of a campaign as (run id, step), run by run in the order of the matrix; reads block by block."""
    query = select(run.c.id).where(run.c.campaign_id == campaign_id).order_by(run.c.ordinal, run.c.id)
    for run_id in conn.execute(query).scalars().all():
        for row in _stream(conn, run_id):
            yield run_id, row


def extra_names(conn: Connection, campaign_id: int) -> list[str]:
    """The names that the scripts of a campaign gave to figures of their own, sorted."""
    query = select(metric_extra.c.name).distinct().join(attempt, attempt.c.id == metric_extra.c.attempt_id)
    query = query.join(run, run.c.id == attempt.c.run_id).where(run.c.campaign_id == campaign_id)
    return sorted(conn.execute(query).scalars())


def latest(conn: Connection, campaign_id: int) -> dict[int, RunLatest]:
    """The newest figures of each run that has reported, by run id."""
    columns = [run_latest.c[name] for name in _LATEST_FIELDS]
    query = select(run_latest.c.nonfinite, *columns).join(run, run.c.id == run_latest.c.run_id)
    rows = conn.execute(query.where(run.c.campaign_id == campaign_id))
    return {values[0]: RunLatest(*_restore(_LATEST_FIELDS, values, mask)) for mask, *values in rows}


def _stream(conn: Connection, run_id: int) -> Iterator[MetricRow]:
    """A run's steps in order, merged with what its script named itself as both cursors go on."""
    extras = groupby(_extras(conn, run_id), key=lambda extra: extra[0])
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


def _restore(names: tuple[str, ...], values: list[Any], mask: int) -> list[Any]:
    """Puts back what SQLite cannot hold: NULL with its bit set in the mask is NaN."""
    if mask:
        for index, name in enumerate(names):
            if values[index] is None and name in _COLUMNS and mask >> _COLUMNS.index(name) & 1:
                values[index] = math.nan
    return values


def _extras(conn: Connection, run_id: int) -> Iterator[tuple[int, int, str, float | None]]:
    """What a run's script named itself, as (step, attempt, name, value) in the order of steps."""
    extra = metric_extra.c
    query = select(extra.step, extra.attempt_id, extra.name, extra.value).join(
        attempt, and_(attempt.c.id == extra.attempt_id, attempt.c.run_id == run_id)
    )
    rows = conn.execute(query.order_by(extra.step), execution_options=_BY_BLOCK)
    return ((row[0], row[1], row[2], row[3]) for row in rows)
