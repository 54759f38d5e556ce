"""A run's steps as columns of numbers, for computations over millions of them."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, repeat
from operator import itemgetter
from statistics import median
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, CursorResult, Integer, Select, and_, bindparam, case, func, select

from .records import METRIC_COLUMNS
from .rows import rows_among
from .schema import NEWEST, PRESENT, attempt, events, metric_extra, run, run_latest, run_metric, step_metric
from .states import RunState

_COLUMNS: Final = tuple(METRIC_COLUMNS.values())
_FIGURES: Final = (
    "ts_s", "loss", "eval_loss", "step_time_s", "tokens_per_s", "mem_allocated_gb", "mem_reserved_gb", "mfu",
)  # fmt: skip
"""The columns of computations: of a million steps each further column takes its time."""

FINAL_SHARE: Final = 0.05  # the share of the last steps over which the final loss is the mean

SPEED, SPEED_STEPS = "script.speed", 400
"""Kind of the event with an attempt's own speed; and the most steps of whose speeds the median replaces it."""

_BLOCK: Final = 20_000  # rows fetched at a time


@dataclass(frozen=True)
class Series:
    """Every step of a run once, from the highest attempt that made it, in the order of steps."""

    # step, generation: of each line; arrays of 64-bit whole numbers
    step: array[int]
    generation: array[int]
    # by column of ``MetricRow``, those of ``_FIGURES``: arrays of doubles as long as ``step``; NaN for a value that was
    # not reported, or is not finite
    figures: dict[str, array[float]]
    # how many values of each column were reported and not finite; columns without any are left out
    non_finite: dict[str, int]
    # the newest step with a reported value that is not finite, if no newer value is
    ended_at: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)


def run_series(conn: Connection, run_id: int, present: Sequence[tuple[int, int]] | None = None) -> Series:
    """Read the steps of a run's present configuration, whose attempts (id, generation) may be known as `present`."""
    step, generation, figures = array("q"), array("q"), {name: array("d") for name in _FIGURES}
    masks, newest = Counter[int](), dict[int, int]()
    result = _rows(conn, run_id, present)
    rows: Any = result.cursor  # the driver's own rows are plain tuples: a fifth faster
    while block := rows.fetchmany(_BLOCK):
        steps, generations, nonfinite, *values = zip(*block, strict=True)
        step.extend(steps)
        generation.extend(generations)
        if any(nonfinite):
            for number, mask in zip(steps, nonfinite, strict=True):
                if mask:
                    masks[mask] += 1
                    newest[mask] = number
        for name, column in zip(_FIGURES, values, strict=True):
            figures[name].extend(_doubles(column))
    result.close()
    counts = {
        name: sum(number for mask, number in masks.items() if mask >> bit & 1) for bit, name in enumerate(_COLUMNS)
    }
    non_finite = {name: number for name, number in counts.items() if number}
    return Series(step, generation, figures, non_finite, _ended_at(newest, step, figures))


def _rows(conn: Connection, run_id: int, present: Sequence[tuple[int, int]] | None) -> CursorResult[Any]:
    """Select the steps in order; for a run with a single attempt, as most are, without a search for later attempts."""
    if present is None:
        present = [(attempt_id, generation) for attempt_id, generation in conn.execute(_present(), {"run_id": run_id})]
    if len(present) == 1:
        [(attempt_id, generation)] = present
        return conn.execute(_steps_of_attempt(), {"attempt_id": attempt_id, "generation": generation})
    return conn.execute(_steps(), {"run_id": run_id})


@cache
def _present() -> Select[Any]:
    """Select the attempts with the run's present configuration. These statements are built once for all runs."""
    return select(attempt.c.id, attempt.c.generation).join(run, PRESENT).where(run.c.id == bindparam("run_id")).limit(2)


@cache
def _steps_of_attempt() -> Select[Any]:
    row, number = step_metric.c, bindparam("generation", type_=Integer)
    query = select(row.step, number, row.nonfinite, *(row[name] for name in _FIGURES))
    return query.where(row.attempt_id == bindparam("attempt_id")).order_by(row.step)


@cache
def _steps() -> Select[Any]:
    row = run_metric.c
    query = select(row.step, row.generation, row.nonfinite, *(row[name] for name in _FIGURES))
    return query.where(row.run_id == bindparam("run_id")).order_by(row.step)


class Curve(NamedTuple):
    """A run's steps in buckets of equal width, each a point with the means of its figures; None for no finite value."""

    width: int  # steps of a bucket, a power of two
    steps: list[int]  # the last step of each point
    # loss, eval_loss: in nats, or the script's unit
    loss: list[float | None]
    eval_loss: list[float | None]
    tokens_per_s: list[float | None]  # of all ranks together

    @property
    def begin_of_last(self) -> int:
        """The last step before the newest point, which may still change; 0 without any."""
        end = self.steps[-1] if self.steps else 0
        return max(0, end - 1 - (end - 1) % self.width)

    def followed_by(self, newer: Curve) -> Curve:
        """Return the curve with newer points in place of the last."""
        kept = bisect_right(self.steps, self.begin_of_last)
        columns: zip[tuple[Any, Any]] = zip(self[1:], newer[1:], strict=True)
        return Curve(self.width, *(old[:kept] + new for old, new in columns))


def run_curve(conn: Connection, run_id: int, last: int, points: int, since: int = 0) -> Curve:
    """Return a run's curve from `since` to `last` of at most `points` points; the database thins it."""
    width = 1 << (max(0, last - 1) // points).bit_length()
    present = [row.id for row in conn.execute(_present(), {"run_id": run_id})]
    line, condition = run_metric.c, run_metric.c.run_id == run_id
    if len(present) == 1:
        line, condition = step_metric.c, step_metric.c.attempt_id == present[0]
    means = (func.avg(line[name]) for name in ("loss", "eval_loss", "tokens_per_s"))
    bucket = (line.step - 1) // width
    query = (
        select(func.max(line.step), *means)
        .where(condition, line.step > since)
        .group_by(bucket)
        .order_by(func.max(line.step))
    )
    columns = [list(column) for column in zip(*conn.execute(query).all(), strict=True)] or [[], [], [], []]
    return Curve(width, *columns)


def _doubles(column: Sequence[float | None]) -> Iterable[float]:
    """Replace None by NaN; with millions of values, the look at each dominates."""
    unknown = column.count(None)
    if unknown == len(column):
        return repeat(math.nan, unknown)
    return [math.nan if value is None else value for value in column] if unknown else column  # type: ignore[return-value]


def final_loss(steps: Sequence[int], losses: Sequence[float]) -> float | None:
    """Return the mean of the finite losses in the last ``FINAL_SHARE`` of the steps with a loss; None without any."""
    end = next((place for place in range(len(steps) - 1, -1, -1) if math.isfinite(losses[place])), None)
    if end is None:
        return None
    begin = bisect_right(steps, (1.0 - FINAL_SHARE) * steps[end])
    last = [loss for loss in losses[begin : end + 1] if math.isfinite(loss)]
    return math.fsum(last) / len(last)


def final_losses(conn: Connection, campaign_id: int) -> dict[int, float]:
    """Return the same of each completed run whose newest line has a loss, by run id."""
    line, last = run_metric.c, run_latest.c
    joined = run.join(run_latest, last.run_id == run.c.id).join(run_metric, line.run_id == run.c.id)
    query = select(run.c.id, func.avg(line.loss)).select_from(joined).group_by(run.c.id)
    query = query.where(run.c.campaign_id == campaign_id, run.c.state == RunState.COMPLETED, last.loss.is_not(None))
    rows = conn.execute(query.where(line.step > (1.0 - FINAL_SHARE) * last.step))
    return {run_id: float(loss) for run_id, loss in rows if loss is not None}


def final_speeds(conn: Connection, campaign_id: int, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return `tokens_per_s` and `mfu` of completed runs, by id, as the newest attempt reported them for all its steps.

    Of `run_ids` without a report, they are the medians of the last half of its lines.
    """
    event, last, line, by_run = events.c, run_latest.c, step_metric.c, {}
    completed = and_(run.c.campaign_id == campaign_id, run.c.state == RunState.COMPLETED)
    of_attempt = and_(event.run_id == run.c.id, event.attempt_id == attempt.c.id, event.kind == SPEED)
    query = select(run.c.id, *(event.data[name].as_string() for name in ("tokens_per_s", "mfu")))
    query = query.join(attempt, NEWEST).join(events, of_attempt).where(completed).order_by(event.id)
    for run_id, tokens, mfu in conn.execute(query):
        with suppress(TypeError, ValueError):  # a script may report anything
            if math.isfinite(float(tokens)):
                by_run[run_id] = {"tokens_per_s": float(tokens), "mfu": None if mfu is None else float(mfu)}
    since = case((last.step > 2 * SPEED_STEPS, last.step - SPEED_STEPS), else_=0.5 * last.step)
    query = select(run.c.id, line.tokens_per_s, line.mfu).join(run_latest, last.run_id == run.c.id)
    query = query.join(step_metric, and_(line.attempt_id == last.attempt_id, line.step > since))
    query = query.where(completed, line.tokens_per_s.is_not(None)).order_by(run.c.id)
    silent = [run_id for run_id in run_ids if run_id not in by_run]
    for run_id, own in groupby(rows_among(conn, query, run.c.id, silent), itemgetter(0)):
        _, tokens, mfu = zip(*own, strict=True)
        by_run[run_id] = {"tokens_per_s": median(tokens), "mfu": None if None in mfu else median(mfu)}
    return by_run


def extra_highest(conn: Connection, campaign_id: int, name: str) -> dict[int, float]:
    """Return the highest value of a script's own figure, by run id: for counts that the next attempt continues."""
    query = select(run.c.id, func.max(metric_extra.c.value)).join(attempt, attempt.c.id == metric_extra.c.attempt_id)
    query = query.join(run, PRESENT)
    rows = conn.execute(query.where(run.c.campaign_id == campaign_id, metric_extra.c.name == name).group_by(run.c.id))
    return {run_id: value for run_id, value in rows if value is not None and math.isfinite(value)}


def _ended_at(newest: dict[int, int], step: array[int], figures: dict[str, array[float]]) -> dict[str, int]:
    ends = {}
    for bit, name in enumerate(_COLUMNS):
        last = max((number for mask, number in newest.items() if mask >> bit & 1), default=None)
        if (
            last is not None
            and name in figures
            and not any(map(math.isfinite, figures[name][bisect_right(step, last) :]))
        ):
            ends[name] = last
    return ends
