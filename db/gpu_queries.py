"""The use of GPUs by an attempt, and joules per token, by the growth of each GPU's energy counter between samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Subquery,
    and_,
    bindparam,
    case,
    func,
    select,
)

from .gpu_records import POWER_CAPPED, SLOWED, AttemptGpus, GpuDevice, GpuSample, GpuUse, TokenEnergy
from .records import thinning_of, untimed_steps, warm_up_steps
from .rows import rows_among
from .schema import PRESENT, attempt, gpu, gpu_sample, node_spool, run, step_metric

MIN_WINDOW_S: Final = 10.0  # a shorter time is unreliable: power is sampled once a second

_BY_BLOCK = {"yield_per": 5000}

_ATTEMPT: Final[BindParameter[int]] = bindparam("attempt_id", type_=Integer)
"""Of statements that are built once for all attempts."""

_Place = tuple[int, int]  # of a GPU: its node, and its number there


class _Counter(NamedTuple):
    """The counter of a GPU: the time in which it is known, and its growth."""

    from_s: float
    to_s: float
    energy_j: float


def attempt_gpus(conn: Connection, attempt_id: int, *, timed: bool = False) -> AttemptGpus | None:
    """Return the use of GPUs by an attempt, None without samples; `timed`: also their use after the warm-up."""
    evidence = conn.execute(select(attempt.c.evidence).where(attempt.c.id == attempt_id)).scalar()
    if recorded := thinning_of(evidence or {}).get("gpus"):
        return _read(recorded)
    counters = {
        (node_rank, number): _Counter(*span)
        for node_rank, number, *span in conn.execute(_growth(), {"attempt_id": attempt_id})
    }
    used = tuple(_use(row._asdict(), counters) for row in conn.execute(_uses(), {"attempt_id": attempt_id}))
    per_token = _token_energy(conn, attempt_id, counters)
    return AttemptGpus(attempt_id, used, per_token, _timed(conn, attempt_id) if timed else ()) if used else None


def run_gpus(conn: Connection, run_id: int) -> list[AttemptGpus]:
    """Return the use of GPUs, also after the warm-up, by each sampled attempt of the run's present configuration."""
    query = select(attempt.c.id).join(run, PRESENT).where(run.c.id == run_id).order_by(attempt.c.generation)
    by_attempt = (attempt_gpus(conn, attempt_id, timed=True) for attempt_id in conn.execute(query).scalars().all())
    return [used for used in by_attempt if used is not None]


def sampled_attempts(conn: Connection, campaign_id: int) -> set[int]:
    """Return the attempts of a campaign with GPU samples, by id."""
    sampled = select(gpu_sample.c.attempt_id).where(gpu_sample.c.attempt_id == attempt.c.id).exists()
    query = (
        select(attempt.c.id).join(run, run.c.id == attempt.c.run_id).where(run.c.campaign_id == campaign_id, sampled)
    )
    return set(conn.execute(query).scalars())


def gpu_devices(conn: Connection, attempt_id: int) -> list[GpuDevice]:
    """Return the GPUs of an attempt, by node and number."""
    columns = [gpu.c[field.name] for field in fields(GpuDevice)]
    query = select(*columns).where(gpu.c.attempt_id == attempt_id).order_by(gpu.c.node_rank, gpu.c.gpu)
    return [GpuDevice(*row) for row in conn.execute(query)]


def gpu_samples(conn: Connection, attempt_id: int) -> Iterator[GpuSample]:
    """Yield an attempt's samples, GPU by GPU in the order of time; reads block by block."""
    row = gpu_sample.c
    query = select(*(row[field.name] for field in fields(GpuSample))).where(row.attempt_id == attempt_id)
    ordered = query.order_by(row.node_rank, row.gpu, row.ts_s)
    return (GpuSample(*values) for values in conn.execute(ordered, execution_options=_BY_BLOCK))


def iter_gpu_samples(conn: Connection, campaign_id: int) -> Iterator[tuple[int, int, GpuDevice | None, GpuSample]]:
    """Yield all samples of a campaign as (run id, generation, GPU, sample); reads block by block."""
    query = select(attempt.c.id, attempt.c.run_id, attempt.c.generation).join(run, run.c.id == attempt.c.run_id)
    order = (run.c.ordinal, run.c.id, attempt.c.generation)
    for attempt_id, run_id, generation in conn.execute(
        query.where(run.c.campaign_id == campaign_id).order_by(*order)
    ).all():
        devices = {(device.node_rank, device.gpu): device for device in gpu_devices(conn, attempt_id)}
        for sample in gpu_samples(conn, attempt_id):
            yield run_id, generation, devices.get((sample.node_rank, sample.gpu)), sample


def node_offsets(conn: Connection, attempt_ids: Sequence[int]) -> dict[int, dict[int, int]]:
    """Return how many bytes of each node's telemetry the store holds, by attempt id and node."""
    row = node_spool.c
    held: dict[int, dict[int, int]] = defaultdict(dict)
    query = select(row.attempt_id, row.node_rank, row.spool_offset)
    for attempt_id, node_rank, offset in rows_among(conn, query, row.attempt_id, attempt_ids):
        held[attempt_id][node_rank] = offset
    return dict(held)


def _read(recorded: Mapping[str, Any]) -> AttemptGpus:
    per_token = recorded["per_token"]
    uses = {name: tuple(GpuUse(**each) for each in recorded[name]) for name in ("gpus", "timed")}
    return AttemptGpus(recorded["attempt_id"], per_token=TokenEnergy(**per_token) if per_token else None, **uses)


def _token_energy(conn: Connection, attempt_id: int, counters: Mapping[_Place, _Counter]) -> TokenEnergy | None:
    # From the end of a step to the end of another, saving and evaluating included. The warm-up does not count, nor does
    # a step without samples of every GPU on every node.
    covered, step = _covered(conn, attempt_id, counters), step_metric.c
    timed_steps = and_(step.tokens_per_s.is_not(None), step.ts_s.is_not(None))
    ends = _ends(conn, attempt_id, and_(timed_steps, step.ts_s.between(*covered)), timed_steps) if covered else None
    if ends is None or ends[1][1] - ends[0][1] < MIN_WINDOW_S:
        return None
    (first, from_s), (last, to_s) = ends
    tokens = conn.execute(_tokens(attempt_id, first, last)).scalar() or 0.0
    energy = conn.execute(_window(from_s, to_s), {"attempt_id": attempt_id}).scalar() or 0.0
    if not (math.isfinite(tokens) and tokens > 0 and energy > 0):
        return None
    return TokenEnergy(first, last, to_s - from_s, energy, tokens)


def _timed(conn: Connection, attempt_id: int) -> tuple[GpuUse, ...]:
    ends = _ends(conn, attempt_id, step_metric.c.ts_s.is_not(None))
    if ends is None:
        return ()
    (_, from_s), (_, to_s) = ends
    rows = conn.execute(_uses(timed=True), {"attempt_id": attempt_id, "from_s": from_s, "to_s": to_s})
    return tuple(_use(row._asdict(), {}) for row in rows)


@cache
def _uses(*, timed: bool = False) -> Select[Any]:
    row = gpu_sample.c
    conditions = [row.ts_s.between(bindparam("from_s"), bindparam("to_s"))] if timed else []
    same_gpu = and_(gpu.c.attempt_id == row.attempt_id, gpu.c.node_rank == row.node_rank, gpu.c.gpu == row.gpu)
    query = select(
        row.node_rank,
        row.gpu,
        func.coalesce(func.max(gpu.c.node), "").label("node"),
        func.coalesce(func.max(gpu.c.name), "").label("name"),
        func.count().label("samples"),
        func.min(row.ts_s).label("from_s"),
        func.max(row.ts_s).label("to_s"),
        _mean(row.util_pct).label("util_pct"),
        _mean(row.power_w).label("power_w"),
        func.max(row.power_w).label("power_peak_w"),
        _mean(row.power_avg_w).label("power_avg_w"),
        func.max(row.power_avg_w).label("power_avg_peak_w"),
        func.min(row.temperature_c).label("temperature_min_c"),
        func.max(row.temperature_c).label("temperature_max_c"),
        func.max(row.mem_used_gb).label("mem_used_max_gb"),
        _mean(_has(SLOWED)).label("slowed"),
        _mean(_has(POWER_CAPPED)).label("power_capped"),
        (func.max(row.ecc_errors) - func.min(row.ecc_errors)).label("ecc_errors"),
        func.sum(row.span_s).label("sampled_s"),
    )
    joined = query.select_from(gpu_sample.outerjoin(gpu, same_gpu)).where(row.attempt_id == _ATTEMPT, *conditions)
    return joined.group_by(row.node_rank, row.gpu).order_by(row.node_rank, row.gpu)


def _mean(value: ColumnElement[Any]) -> ColumnElement[Any]:
    span_s = gpu_sample.c.span_s
    return func.sum(value * span_s) / func.nullif(func.sum(case((value.is_not(None), span_s))), 0)


def _has(bits: int) -> ColumnElement[float]:
    throttle = gpu_sample.c.throttle
    return case((throttle.bitwise_and(bits) != 0, 1.0), (throttle.is_not(None), 0.0))


def _use(row: dict[str, Any], counters: Mapping[_Place, _Counter]) -> GpuUse:
    counter = counters.get((row["node_rank"], row["gpu"]))
    return GpuUse(**row, energy_j=counter.energy_j if counter else None)


@cache
def _grown() -> Subquery:
    """Select the growth of each GPU's counter between samples; a counter that began anew has grown by its value."""
    row = gpu_sample.c
    order: dict[str, Any] = {"partition_by": (row.node_rank, row.gpu), "order_by": row.ts_s}
    before_s, before_j = func.lag(row.ts_s).over(**order), func.lag(row.energy_j).over(**order)
    grown_j = case((before_j.is_(None), 0.0), (row.energy_j >= before_j, row.energy_j - before_j), else_=row.energy_j)
    query = select(row.node_rank, row.gpu, row.ts_s, before_s.label("before_s"), grown_j.label("grown_j"))
    return query.where(row.attempt_id == _ATTEMPT, row.energy_j.is_not(None)).subquery()


@cache
def _growth() -> Select[Any]:
    grown = _grown().c
    figures = (func.min(grown.ts_s), func.max(grown.ts_s), func.sum(grown.grown_j))
    return select(grown.node_rank, grown.gpu, *figures).group_by(grown.node_rank, grown.gpu)


def _window(from_s: float, to_s: float) -> Select[Any]:
    grown = _grown().c
    begin_s = case((grown.before_s < from_s, from_s), else_=grown.before_s)
    end_s = case((grown.ts_s > to_s, to_s), else_=grown.ts_s)
    part_j = grown.grown_j * (end_s - begin_s) / (grown.ts_s - grown.before_s)
    return select(func.sum(part_j)).where(grown.before_s < to_s, grown.ts_s > from_s)


def _covered(conn: Connection, attempt_id: int, counters: Mapping[_Place, _Counter]) -> tuple[float, float] | None:
    expected = {(device.node_rank, device.gpu) for device in gpu_devices(conn, attempt_id)}
    nodes = conn.execute(select(attempt.c.nodes).where(attempt.c.id == attempt_id)).scalar()
    if not expected or set(counters) != expected or len({node for node, _ in expected}) != nodes:
        return None
    return max(counter.from_s for counter in counters.values()), min(counter.to_s for counter in counters.values())


def _ends(
    conn: Connection, attempt_id: int, counts: ColumnElement[bool], timed: ColumnElement[bool] | None = None
) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """`counts` selects the steps that may be ends, `timed` those that include the warm-up (default: the same)."""
    row = step_metric.c
    mine = row.attempt_id == attempt_id
    bounds = conn.execute(
        select(func.min(row.step), func.max(row.step)).where(mine, counts if timed is None else timed)
    )
    lowest, highest = bounds.one()
    if lowest is None:
        return None
    of_run = select(attempt.c.start_step, attempt.c.last_step, run.c.config).join(run, run.c.id == attempt.c.run_id)
    first_step, ended, config = conn.execute(of_run.where(attempt.c.id == attempt_id)).one()
    before = lowest - 1 if first_step is None else min(first_step, lowest - 1)
    warm = before + warm_up_steps(untimed_steps(config), max(highest, ended or 0) - before)
    steps = select(row.step, row.ts_s).where(mine, counts, row.step >= warm)
    first = conn.execute(steps.order_by(row.step).limit(1)).first()
    last = conn.execute(steps.order_by(row.step.desc()).limit(1)).first()
    return ((first[0], first[1]), (last[0], last[1])) if first and last and first[0] < last[0] else None


def _tokens(attempt_id: int, first: int, last: int) -> Select[Any]:
    """Select the tokens of the steps after the first. A line stands for all steps since the line before it."""
    row = step_metric.c
    before, before_s = (func.lag(column).over(order_by=row.step) for column in (row.step, row.ts_s))
    steps = row.step - before
    time_s = func.coalesce(row.step_time_s * steps, row.ts_s - before_s)
    query = select((row.tokens_per_s * time_s).label("tokens")).where(
        row.attempt_id == attempt_id,
        row.tokens_per_s.is_not(None),
        row.ts_s.is_not(None),
        row.step.between(first, last),
    )
    return select(func.sum(query.subquery().c.tokens))
