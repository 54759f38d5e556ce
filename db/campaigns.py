"""Whole campaigns: totals, reasons for failures, paces, and deletion."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Label, String, and_, case, cast, delete, func, or_, select

from . import schema
from .records import COMPLETED, COMPLETED_EARLY, THINNED
from .states import ACTIVE_ATTEMPT, UNSETTLED_RUN, AttemptState, RunState, shown_state

METRICS_SOURCE: Final = "script.metrics_source"  # kind of event: the source of metrics that a script does not report
_NOT_READ: Final = ("reported", "none")
REPORT_REFUSED: Final = "script.report_refused"  # kind of the event with the reason why reported values were refused


class Asked(NamedTuple):
    """The resources of a run on a node, in Slurm's terms; None if its configuration does not name them."""

    gpus_per_node: str | None
    gres: str | None
    ranks_per_node: int | None


class CampaignTotals(NamedTuple):
    """The totals of a campaign."""

    counts: dict[RunState, int]  # runs by state
    shown: dict[str, int]  # the same, with runs that are being cancelled by themselves
    early: int  # completed runs that did so before their target step
    rank_seconds: Mapping[Asked, float]  # of all attempts until the last look, by the resources of their runs
    active_s: float | None  # when a run changed or an attempt last reported; None for never


def campaign_totals(conn: Connection, looked_s: Callable[[int], float]) -> dict[int, CampaignTotals]:
    """Return the totals of every campaign that has runs, by its id, given when each last looked at its jobs."""
    run, attempt = schema.run.c, schema.attempt.c
    counts: dict[int, dict[RunState, int]] = defaultdict(Counter)
    shown: dict[int, dict[str, int]] = defaultdict(Counter)
    active: dict[int, float] = {}
    states = select(run.campaign_id, run.state, run.desired, func.count(), func.max(run.updated_s))
    grouped = conn.execute(states.group_by(run.campaign_id, run.state, run.desired))
    for campaign_id, state, desired, number, changed_s in grouped:
        counts[campaign_id][state] += number
        shown[campaign_id][shown_state(state, desired)] += number
        active[campaign_id] = max(active.get(campaign_id, 0.0), changed_s)
    heard = select(run.campaign_id, func.max(attempt.heartbeat_s)).join(schema.attempt)
    for campaign_id, heard_s in conn.execute(heard.group_by(run.campaign_id)):
        active[campaign_id] = max(active[campaign_id], heard_s or 0.0)
    seconds = rank_seconds(conn, looked_s)
    completed = select(run.campaign_id, func.count()).join(schema.attempt, schema.NEWEST)
    completed = completed.where(run.state == RunState.COMPLETED, attempt.failure_class == COMPLETED_EARLY)
    early = {row[0]: row[1] for row in conn.execute(completed.group_by(run.campaign_id))}
    return {
        key: CampaignTotals(numbers, shown[key], early.get(key, 0), seconds.get(key, {}), active[key])
        for key, numbers in counts.items()
    }


def run_counts(conn: Connection, campaign_id: int) -> dict[tuple[RunState, str | None], int]:
    """Return the number of runs by state and code of the cause."""
    run = schema.run.c
    code = run.cause["code"].as_string()
    query = select(run.state, code, func.count()).where(run.campaign_id == campaign_id).group_by(run.state, code)
    return {(state, cause): number for state, cause, number in conn.execute(query)}


def running_s(started_s: float | None, created_s: float, now_s: float) -> float:
    """Return how long an unended attempt has run by the store's clock, at most since it was recorded."""
    return max(0.0, now_s - max(started_s, created_s)) if started_s else 0.0


def rank_seconds(
    conn: Connection, looked_s: Callable[[int], float], campaign_id: int | None = None
) -> Mapping[int, Mapping[Asked, float]]:
    """Return the usage of all attempts, active attempts too, by campaign and resources; or of a single campaign."""
    run, attempt = schema.run.c, schema.attempt.c
    conditions = [] if campaign_id is None else [run.campaign_id == campaign_id]
    fields = [run.campaign_id, *_asked()]
    used = select(*fields, attempt.gpu_seconds).join(schema.attempt).where(attempt.gpu_seconds > 0, *conditions)
    usage = used.subquery().c
    alike = (usage.campaign_id, usage.gpus_per_node, usage.gres, usage.ranks_per_node)
    seconds: dict[int, dict[Asked, float]] = defaultdict(lambda: defaultdict(float))
    for owner, gpus, gres, ranks, used_s in conn.execute(select(*alike, func.sum(usage.gpu_seconds)).group_by(*alike)):
        seconds[owner][Asked(gpus, gres, ranks)] += used_s
    unended = and_(attempt.state.in_(list(ACTIVE_ATTEMPT)), attempt.gpu_seconds == 0, *conditions)
    began = (
        select(*fields, attempt.world_size, attempt.started_s, attempt.created_s).join(schema.attempt).where(unended)
    )
    for owner, gpus, gres, ranks, *times in conn.execute(began):
        world_size, started_s, created_s = times
        seconds[owner][Asked(gpus, gres, ranks)] += world_size * running_s(started_s, created_s, looked_s(owner))
    return seconds


def asked(conn: Connection, campaign_id: int) -> dict[int, Asked]:
    """Return the resources of each run of a campaign, by run id."""
    run = schema.run.c
    rows = conn.execute(select(run.id, *_asked()).where(run.campaign_id == campaign_id))
    return {run_id: Asked(gpus, gres, ranks) for run_id, gpus, gres, ranks in rows}


def _asked() -> list[Label[Any]]:
    """Return the columns of `Asked`: a run that shares its node asks for GPUs of its own."""
    config = schema.run.c.config
    gpus, gres = (config["slurm", name].as_string() for name in ("gpus_per_node", "gres"))
    own = cast(config["slurm", "gpus_per_run"].as_integer(), String)
    columns = func.coalesce(own, gpus), case((own.is_(None), gres)), config["ranks_per_node"].as_integer()
    return [column.label(name) for column, name in zip(columns, Asked._fields, strict=True)]


def failure_rules(conn: Connection, campaign_id: int) -> dict[int, str]:
    """Return the rule that classified the newest attempt, by run id, of runs that failed or are held."""
    run, attempt = schema.run.c, schema.attempt.c
    query = select(run.id, attempt.evidence["rule"].as_string()).join(schema.attempt, schema.NEWEST)
    troubled = query.where(run.campaign_id == campaign_id, run.state.in_((RunState.FAILED, RunState.HELD)))
    return {run_id: rule or "" for run_id, rule in conn.execute(troubled)}


class MetricsSource(NamedTuple):
    """The source of a run's metrics if its script does not report them."""

    kind: str  # `printed` or `tensorboard`; `none` if its output has no metrics so far
    message: str  # the same for people


def metrics_sources(conn: Connection, campaign_id: int) -> dict[int, MetricsSource]:
    """Return, by run id, the source of the metrics of its newest attempt with any, unless the script reports them."""
    event, attempt = schema.events.c, schema.attempt.c
    query = select(event.attempt_id, event.message, event.data["source"].as_string())
    sources: dict[int, MetricsSource] = {}
    condition = and_(event.campaign_id == campaign_id, event.kind == METRICS_SOURCE)
    for attempt_id, message, kind in conn.execute(query.where(condition).order_by(event.id)):
        if kind or attempt_id not in sources:  # a word about a pattern says nothing of the source
            sources[attempt_id] = MetricsSource(kind or "", message)
    if not sources:
        return {}
    silent = [attempt_id for attempt_id, source in sources.items() if source.kind == "none"]
    waits = and_(attempt.id.in_(silent), attempt.last_step.is_(None), attempt.state == AttemptState.RUNNING)
    began = select(attempt.run_id, attempt.id, waits).join(schema.run, attempt.run_id == schema.run.c.id)
    began = began.where(schema.run.c.campaign_id == campaign_id, or_(attempt.last_step.is_not(None), waits))
    newest = {row[0]: row[1:] for row in conn.execute(began.order_by(attempt.generation))}
    by_run = {
        run_id: (sources[attempt_id], waiting)
        for run_id, (attempt_id, waiting) in newest.items()
        if attempt_id in sources
    }
    return {run_id: source for run_id, (source, waiting) in by_run.items() if waiting or source.kind not in _NOT_READ}


def thinned_runs(conn: Connection, campaign_id: int) -> dict[int, int]:
    """Return, by run id, N for each run that was thinned to one step in N."""
    run, attempt = schema.run.c, schema.attempt.c
    every = attempt.evidence[THINNED]["keep_every"].as_integer()
    query = select(run.id, func.max(every)).join(schema.attempt, attempt.run_id == run.id)
    query = query.where(run.campaign_id == campaign_id, every.is_not(None)).group_by(run.id)
    return {row[0]: row[1] for row in conn.execute(query)}


def delete_measurements(conn: Connection, attempt_ids: Collection[int]) -> None:
    """Delete the measurements of attempts: the tables that grow with every step."""
    for table in (schema.step_metric, schema.metric_extra, schema.gpu_sample, schema.gpu, schema.node_spool):
        conn.execute(delete(table).where(table.c.attempt_id.in_(attempt_ids)))


def delete_campaign(conn: Connection, campaign_id: int) -> None:
    """Delete a campaign whose measurements are gone. Its lease stays: an epoch must never come back."""
    runs = select(schema.run.c.id).where(schema.run.c.campaign_id == campaign_id)
    attempts = select(schema.attempt.c.id).where(schema.attempt.c.run_id.in_(runs))
    conn.execute(delete(schema.events).where(schema.events.c.campaign_id == campaign_id))
    conn.execute(delete(schema.memory_observation).where(schema.memory_observation.c.attempt_id.in_(attempts)))
    for table in (schema.checkpoint, schema.run_latest, schema.attempt):
        conn.execute(delete(table).where(table.c.run_id.in_(runs)))
    conn.execute(delete(schema.run).where(schema.run.c.campaign_id == campaign_id))
    conn.execute(delete(schema.campaign).where(schema.campaign.c.id == campaign_id))


class Pace(NamedTuple):
    """The times of the newest attempt of a run, with the run's present configuration, by the clock of its node."""

    run_id: int
    params: dict[str, Any]
    completed: bool
    started_s: float | None
    ended_s: float | None
    start_step: int | None
    # half_step, half_s: a step about half way through the steps that it made, and its time; None without steps
    half_step: int | None
    half_s: float | None
    # step, ts_s: its newest step, likewise
    step: int | None
    ts_s: float | None


_MOST_PACES: Final = 2000


def paces(conn: Connection, campaign_id: int | None, run_ids: Collection[int] | None = None) -> list[Pace]:
    """Return the paces of the runs of a campaign, or of these runs, that run or ended last, the newest last."""
    run, attempt, last, step = schema.run.c, schema.attempt.c, schema.run_latest.c, schema.step_metric.c
    earlier = schema.step_metric.alias().c
    half = (func.coalesce(attempt.start_step, 0) + last.step) / 2
    first = select(func.min(earlier.step)).where(earlier.attempt_id == attempt.id, earlier.step >= half)
    joined = schema.run.join(schema.attempt, and_(schema.NEWEST, schema.PRESENT))
    joined = joined.outerjoin(schema.run_latest, last.attempt_id == attempt.id)
    joined = joined.outerjoin(
        schema.step_metric, and_(step.attempt_id == attempt.id, step.step == first.scalar_subquery())
    )
    times = (attempt.started_s, attempt.ended_s, attempt.start_step, step.step, step.ts_s, last.step, last.ts_s)
    completed = func.coalesce(attempt.failure_class == COMPLETED, False)
    query = select(run.id, run.params, completed, *times).select_from(joined)
    query = query.where(
        attempt.started_s.is_not(None), or_(run.state == RunState.RUNNING, attempt.ended_s.is_not(None))
    )
    chosen = query.where(run.campaign_id == campaign_id if run_ids is None else run.id.in_(run_ids))
    rows = conn.execute(chosen.order_by(attempt.id.desc()).limit(_MOST_PACES)).all()
    return [Pace(*row) for row in reversed(rows)]


_MOST_ELSEWHERE: Final = 500


def completed_elsewhere(conn: Connection, campaign_id: int | None) -> list[tuple[int, Mapping[str, Any]]]:
    """Return ids and configurations of the newest completed runs of other campaigns; None for all campaigns."""
    run = schema.run.c
    others = [] if campaign_id is None else [run.campaign_id != campaign_id]
    query = select(run.id, run.config).where(run.state == RunState.COMPLETED, *others)
    return [(row[0], row[1]) for row in conn.execute(query.order_by(run.id.desc()).limit(_MOST_ELSEWHERE))]


def unsettled(conn: Connection, campaign_id: int, column: str) -> dict[int, Mapping[str, Any]]:
    """Return the `params` or `config` of the runs of a campaign that are not settled, by id."""
    run = schema.run.c
    query = select(run.id, run[column]).where(run.campaign_id == campaign_id, run.state.in_(list(UNSETTLED_RUN)))
    return {row[0]: row[1] for row in conn.execute(query)}
