"""Thins the metrics of runs that ended long ago, so that a store that is used for years stays small.

The first of every N reported steps, the same of all attempts of a run, and of every N samples of a GPU stays. The use
of GPUs and the final loss are computed before, and kept in the evidence. The store is locked for a moment at a time
only, and the next prune finishes one that was killed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, or_, select, update

from .gpu_queries import attempt_gpus
from .queries import add_event
from .records import THINNED, thinning_of
from .rows import pieces
from .schema import attempt, gpu_sample, metric_extra, run, step_metric
from .series import final_loss, run_series
from .states import ENDED_RUN, TERMINAL_ATTEMPT
from .store import Store

_LINES_LOOKED_AT: Final = 1000
_PEAKS: Final = ("mem_allocated_gb", "mem_reserved_gb")  # columns whose highest value is a figure of the run


@dataclass(frozen=True)
class Retention:
    """The rule for runs that ended long ago."""

    keep_every: int  # N: one step, and one sample of each GPU, in N stays
    after_s: float  # seconds since the last attempt of a run ended


@dataclass(frozen=True)
class Pruned:
    """The removed rows, or those that would be removed."""

    runs: int = 0  # with a removed row
    steps: int = 0  # lines of steps
    figures: int = 0  # of a script's own, at these steps
    samples: int = 0  # of GPUs

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


Through = Callable[[Sequence[list[int]]], Iterable[list[int]]]  # hands on the attempts of each run, and shows progress


def prune(store: Store, campaign_id: int, rule: Retention, *, dry_run: bool = False, through: Through = iter) -> Pruned:
    """Thin the runs of a campaign that the rule applies to; `dry_run`: only count. `through` shows progress.

    Raises StoreReadOnly; StoreUnreachable if the database broke off: finished runs stay thinned.
    """
    total = Pruned()
    for attempt_ids in through(list(_old_runs(store, campaign_id, rule))):
        total += _prune_run(store, attempt_ids, rule.keep_every, dry_run=dry_run)
    if total.runs and not dry_run:
        message = f"one step in {rule.keep_every} kept of {total.runs} ended runs: {total.steps:,} lines removed"
        with store.write() as conn:
            add_event(conn, campaign_id, "metrics_pruned", message, data={"keep_every": rule.keep_every, **vars(total)})
    return total


def _old_runs(store: Store, campaign_id: int, rule: Retention) -> Iterator[list[int]]:
    row = attempt.c
    with store.read() as conn:
        until_s = store.now(conn) - rule.after_s
        query = select(row.run_id, row.id, row.state, row.ended_s, row.evidence).join(run, run.c.id == row.run_id)
        ended = query.where(run.c.campaign_id == campaign_id, run.c.state.in_(ENDED_RUN))
        by_run: dict[int, list[Any]] = defaultdict(list)
        for record in conn.execute(ended.order_by(row.run_id, row.id)):
            by_run[record.run_id].append(record)
    for attempts in by_run.values():
        over = all(record.state in TERMINAL_ATTEMPT and (record.ended_s or 0.0) <= until_s for record in attempts)
        thinnings = [thinning_of(record.evidence) for record in attempts]
        if over and not all(
            thinning.get("done") and thinning["keep_every"] >= rule.keep_every for thinning in thinnings
        ):
            yield [record.id for record in attempts]


def _prune_run(store: Store, attempt_ids: Sequence[int], every: int, *, dry_run: bool) -> Pruned:
    with store.read() as conn:
        apart = _steps_apart(conn, attempt_ids)
        surplus = _superfluous(conn, attempt_ids, every * apart)
        run_id = conn.execute(select(attempt.c.run_id).where(attempt.c.id == attempt_ids[0])).scalar_one()
        series = run_series(conn, run_id)
        facts = {"steps_apart": apart, "final_loss": final_loss(series.step, series.figures["loss"])}
    if not dry_run:  # the figures of the GPUs need the steps as they were
        for attempt_id in attempt_ids:
            _mark(store, attempt_id, every, facts)
    removed = Pruned()
    for steps in pieces(surplus):
        removed += _thin_steps(store, attempt_ids, steps, dry_run=dry_run)
    for attempt_id in attempt_ids:
        removed += Pruned(samples=_thin_samples(store, attempt_id, every, dry_run=dry_run))
    if not dry_run:
        for attempt_id in attempt_ids:
            _mark(store, attempt_id, every, facts, done=True)
    return removed + Pruned(runs=1) if removed != Pruned() else removed


def _superfluous(conn: Connection, attempt_ids: Sequence[int], stride: int) -> list[int]:
    """Not the multiples of a number: a script may report steps 1, 11, 21, or every hundredth."""
    row = step_metric.c
    mine = row.attempt_id.in_(attempt_ids)
    rare = select(row.step).where(mine, or_(row.eval_loss.is_not(None), row.nonfinite != 0))
    stays = _lasting(conn, attempt_ids).union(conn.execute(rare).scalars())
    reported = conn.execute(select(row.step).where(mine).distinct().order_by(row.step)).scalars().all()
    return [step for before, step in pairwise(reported) if before // stride == step // stride and step not in stays]


def _steps_apart(conn: Connection, attempt_ids: Sequence[int]) -> int:
    """Return the steps between two lines of a run: as of the first prune, else the median over first lines."""
    evidences = conn.execute(select(attempt.c.evidence).where(attempt.c.id.in_(attempt_ids))).scalars()
    if recorded := [apart for evidence in evidences if (apart := thinning_of(evidence).get("steps_apart"))]:
        return int(recorded[0])
    row, apart = step_metric.c, list[int]()
    for attempt_id in attempt_ids:
        first = select(row.step).where(row.attempt_id == attempt_id).order_by(row.step).limit(_LINES_LOOKED_AT)
        apart += [later - step for step, later in pairwise(conn.execute(first).scalars())]
    return int(statistics.median_low(apart)) if apart else 1


def _lasting(conn: Connection, attempt_ids: Sequence[int]) -> set[int]:
    row, extra = step_metric.c, metric_extra.c
    steps = set[int]()
    for lowest, highest in conn.execute(
        select(func.min(row.step), func.max(row.step)).where(row.attempt_id.in_(attempt_ids)).group_by(row.attempt_id)
    ):
        steps |= {lowest, highest}
    for attempt_id in attempt_ids:
        orders = [row.loss.asc(), *(row[name].desc() for name in _PEAKS)]
        for order, column in zip(orders, (row.loss, *(row[name] for name in _PEAKS)), strict=True):
            of_it = select(row.step).where(row.attempt_id == attempt_id, column.is_not(None))
            steps |= set(conn.execute(of_it.order_by(order, row.step).limit(1)).scalars())
    last = select(func.max(extra.step)).where(extra.attempt_id.in_(attempt_ids)).group_by(extra.attempt_id, extra.name)
    return steps | set(conn.execute(last).scalars())


def _thin_steps(store: Store, attempt_ids: Sequence[int], steps: Sequence[int], *, dry_run: bool) -> Pruned:
    def rows(table: Table) -> ColumnElement[bool]:
        return and_(table.c.attempt_id.in_(attempt_ids), table.c.step.in_(steps))

    tables = metric_extra, step_metric
    if dry_run:
        with store.read() as conn:
            counts = [conn.execute(select(func.count()).where(rows(table))).scalar_one() for table in tables]
    else:
        with store.write() as conn:
            counts = [conn.execute(delete(table).where(rows(table))).rowcount for table in tables]
    return Pruned(figures=counts[0], steps=counts[1])


def _mark(store: Store, attempt_id: int, every: int, facts: Mapping[str, Any], *, done: bool = False) -> None:
    row = attempt.c
    with store.write() as conn:
        evidence = conn.execute(select(row.evidence).where(row.id == attempt_id).with_for_update()).scalar_one()
        before = thinning_of(evidence) or {"gpus": None, "sample_s": _sample_s(conn, attempt_id)}
        if before["gpus"] is None and (used := attempt_gpus(conn, attempt_id, timed=True)):
            before = {**before, "gpus": asdict(used)}
        least = max(every, before.get("keep_every", 0))
        marked = {**evidence, THINNED: {**facts, **before, "keep_every": least, "done": done}}
        conn.execute(update(attempt).where(row.id == attempt_id).values(evidence=marked))


def _sample_s(conn: Connection, attempt_id: int) -> float:
    spans = conn.execute(select(gpu_sample.c.span_s).where(gpu_sample.c.attempt_id == attempt_id)).scalars().all()
    return statistics.median(spans) if spans else 0.0


def _thin_samples(store: Store, attempt_id: int, every: int, *, dry_run: bool) -> int:
    row = gpu_sample.c
    with store.read() as conn:
        evidence = conn.execute(select(attempt.c.evidence).where(attempt.c.id == attempt_id)).scalar_one()
        span_s = thinning_of(evidence).get("sample_s") or _sample_s(conn, attempt_id)
        query = select(row.node_rank, row.gpu, row.ts_s).where(row.attempt_id == attempt_id)
        times: dict[tuple[int, int], list[float]] = defaultdict(list)
        for node_rank, number, ts_s in conn.execute(query.order_by(row.node_rank, row.gpu, row.ts_s)):
            times[node_rank, number].append(ts_s)
    removed = 0
    for (node_rank, number), times_s in times.items():
        surplus = _crowded(times_s, every * span_s)
        removed += len(surplus)
        for some in () if dry_run else pieces(surplus):
            of_gpu = and_(row.attempt_id == attempt_id, row.node_rank == node_rank, row.gpu == number)
            with store.write() as conn:
                conn.execute(delete(gpu_sample).where(of_gpu, row.ts_s.in_(some)))
    return removed


def _crowded(times: Sequence[float], width_s: float) -> list[float]:
    if not width_s:
        return []
    places = [int((ts_s - times[0]) / width_s) for ts_s in times]
    return [ts_s for before, place, ts_s in zip(places, places[1:-1], times[1:-1], strict=False) if place == before]
