"""Thins the metrics of runs that ended long ago, so that a store that is used for years stays small.

The first of every N reported steps, the same of all attempts of a run, and of every N samples of a GPU stays. The use
of GPUs and the final loss are computed before, and kept in the evidence. A run is one transaction: one that was killed
is thinned by the next prune.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Select, and_, delete, func, or_, select, tuple_, update

from .gpu_queries import attempt_gpus
from .records import THINNED, thinning_of
from .rows import pieces
from .schema import attempt, gpu_sample, metric_extra, run, step_metric
from .series import final_loss, run_series
from .states import ENDED_RUN, TERMINAL_ATTEMPT
from .store import Store

_PEAKS: Final = ("mem_allocated_gb", "mem_reserved_gb")  # columns whose highest value is a figure of the run


class Retention(NamedTuple):
    """The rule for runs that ended long ago."""

    keep_every: int  # N: one step, and one sample of each GPU, in N stays
    after_s: float  # seconds since the last attempt of a run ended


class Pruned(NamedTuple):
    """The number of removed rows of metrics, and of runs that had them; in a dry run, of rows to remove."""

    runs: int
    rows: int


Through = Callable[[Sequence[list[int]]], Iterable[list[int]]]  # hands on the attempts of each run, and shows progress


def prune(store: Store, campaign_id: int, rule: Retention, *, dry_run: bool = False, through: Through = iter) -> Pruned:
    """Thin the runs of a campaign that the rule applies to; `dry_run`: only count. `through` shows progress.

    Raises StoreReadOnly; StoreUnreachable if the database broke off: finished runs stay thinned.
    """
    removed = []
    for attempt_ids in through(list(_old_runs(store, campaign_id, rule))):
        with store.read() if dry_run else store.write() as conn:
            removed.append(_prune_run(conn, attempt_ids, rule.keep_every, dry_run=dry_run))
    return Pruned(sum(map(bool, removed)), sum(removed))


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
        if over and any(thinning_of(record.evidence).get("keep_every", 0) < rule.keep_every for record in attempts):
            yield [record.id for record in attempts]


def _prune_run(conn: Connection, attempt_ids: Sequence[int], every: int, *, dry_run: bool) -> int:
    """Return the number of rows; figures are computed from them first."""
    row = attempt.c
    query = select(row.id, row.run_id, row.evidence).where(row.id.in_(attempt_ids))
    attempts = conn.execute(query if dry_run else query.with_for_update()).all()
    before = {attempt_id: thinning_of(evidence) for attempt_id, _, evidence in attempts}
    line = step_metric.c
    mine = line.attempt_id.in_(attempt_ids)
    reported = conn.execute(select(line.step).where(mine).distinct().order_by(line.step)).scalars().all()
    apart = next((thinning["steps_apart"] for thinning in before.values() if thinning.get("steps_apart")), 0)
    apart = apart or statistics.median_low([later - step for step, later in pairwise(reported)] or [1])
    # not the multiples of a number: a script may report steps 1, 11, 21, or every hundredth
    stride, lasting = every * apart, _lasting(conn, attempt_ids)
    steps = [b for a, b in pairwise(reported) if a // stride == b // stride and b not in lasting]
    samples = {
        attempt_id: _crowded_samples(attempt_id, -(-every // thinning.get("keep_every", 1)))
        for attempt_id, thinning in before.items()
    }
    tables = step_metric, metric_extra
    surplus = [
        (table, and_(table.c.attempt_id.in_(attempt_ids), table.c.step.in_(some)))
        for some in pieces(steps)
        for table in tables
    ]
    surplus += [(gpu_sample, tuple_(*gpu_sample.primary_key).in_(crowded)) for crowded in samples.values()]
    if dry_run:
        counts = (select(func.count()).select_from(table).where(condition) for table, condition in surplus)
        return sum(conn.execute(count).scalar_one() for count in counts)
    series = run_series(conn, attempts[0].run_id)
    facts = {"steps_apart": apart, "final_loss": final_loss(series.step, series.figures["loss"])}
    for attempt_id, _, evidence in attempts:
        thinning = {**facts, **before[attempt_id]}
        if thinning.get("gpus") is None:
            used = attempt_gpus(conn, attempt_id, timed=True)
            thinning["gpus"] = asdict(used) if used else None
        thinning["keep_every"] = max(every, thinning.get("keep_every", 0))
        conn.execute(update(attempt).where(row.id == attempt_id).values(evidence={**evidence, THINNED: thinning}))
    return sum(conn.execute(delete(table).where(condition)).rowcount for table, condition in surplus)


def _lasting(conn: Connection, attempt_ids: Collection[int]) -> set[int]:
    """Return the steps of attempts that figures need: first, last, lowest loss, peaks, held-out losses, own figures."""
    row, extra = step_metric.c, metric_extra.c
    rare = or_(row.eval_loss.is_not(None), row.nonfinite != 0)
    steps = set(conn.execute(select(row.step).where(row.attempt_id.in_(attempt_ids), rare)).scalars())
    for attempt_id in attempt_ids:
        orders = row.step.asc(), row.step.desc(), row.loss.asc(), *(row[name].desc() for name in _PEAKS)
        for order in orders:
            of_it = select(row.step).where(row.attempt_id == attempt_id, order.element.is_not(None))
            steps |= set(conn.execute(of_it.order_by(order, row.step).limit(1)).scalars())
    last = select(func.max(extra.step)).where(extra.attempt_id.in_(attempt_ids)).group_by(extra.attempt_id, extra.name)
    return steps | set(conn.execute(last).scalars())


def _crowded_samples(attempt_id: int, every: int) -> Select[Any]:
    """Select the keys of an attempt's GPU samples but the first of every so many, and the last."""
    row = gpu_sample.c
    gpu: dict[str, Any] = {"partition_by": (row.node_rank, row.gpu)}
    place = (func.row_number().over(**gpu, order_by=row.ts_s) - 1).label("place")
    last = (func.count().over(**gpu) - 1).label("last")
    numbered = select(*gpu_sample.primary_key, place, last).where(row.attempt_id == attempt_id).subquery().c
    keys = [numbered[column.name] for column in gpu_sample.primary_key]
    return select(*keys).where(numbered.place % every != 0, numbered.place != numbered.last)
