"""Forecast how long runs will take, by how long like runs took. Pure, but for `read_history`.

A run takes the time until its steps go on evenly, its steps at the pace of the second half, and the time after its last
step. Runs of the same condition know these best, then like runs of earlier campaigns, then the nearest conditions.
"""

from __future__ import annotations

import heapq
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from dscampaign.db import campaigns
from dscampaign.db.campaigns import Pace
from dscampaign.db.records import RunStatus
from dscampaign.db.states import CANCELLING, UNSETTLED_RUN, RunState, Stage
from dscampaign.orchestrator.spec.effects import ALIKE_IN_SPEED, DESCRIBES_ONLY

LEAST_STEPS: Final = 4  # fewer steps of a running attempt show no pace

NEWEST, MOST_NEAR = 5, 50
"""Of many like runs, and of runs of other conditions, these count: machines become slower, and code changes."""

ALIKE: Final = 2.0
"""If slow runs of other conditions take longer than so many times the fast ones, the time of another is unknown."""

QUIET_S, QUIET_STEPS = 120.0, 20.0  # a run that has been silent for longer may not go on as it did

_NO_MATTER: Final = ALIKE_IN_SPEED - DESCRIBES_ONLY
"""Fields of `train` that change neither the time of a step nor what a run does beside its steps."""
_OF_JOBS: Final = ("partition", "constraint", "gres", "gpus_per_node", "gpus_per_run", "cpus_per_task")
_OF_WORK: Final = ("executor", "command", "launcher", "launcher_options", "ranks_per_node", "deepspeed", "container")


class Basis(StrEnum):
    """The runs that a forecast is taken from."""

    REPEATS = "repeats"
    EARLIER = "earlier_campaigns"
    NEAREST = "nearest_conditions"


_Point = tuple[tuple[str, str], ...]
"""The axes of a point with their values as JSON."""
_ENCODED: Final = json.JSONEncoder(sort_keys=True, default=str).encode


class Forecast(NamedTuple):
    """The likely duration of an attempt, in seconds; `end_s` of them after its last step."""

    seconds: float
    basis: Basis
    end_s: float


class _Measured(NamedTuple):
    """The parts of a run's duration, in seconds; None if unknown. `whole_s` only of a run that completed at once."""

    start_s: float
    step_s: float | None
    end_s: float | None
    whole_s: float | None

    @classmethod
    def of(cls, pace: Pace) -> _Measured:
        """Return the parts as far as an attempt shows them."""
        started_s, ended_s, first = pace.started_s or 0.0, pace.ended_s or math.nan, pace.start_step or 0
        step_s, start_s = step_time_s(pace), 0.0
        if step_s is not None:
            start_s = (pace.half_s or 0.0) - started_s - ((pace.half_step or 0) - first) * step_s
        end_s = ended_s - (pace.ts_s or math.nan)
        whole_s = ended_s - started_s if pace.completed and not first else math.nan
        return cls(start_s, step_s, end_s if pace.completed and end_s >= 0 else None, whole_s if whole_s > 0 else None)


def step_time_s(pace: Pace) -> float | None:
    """Return the time of a step in the second half of an attempt's steps; None if it made too few."""
    if pace.half_step is None or pace.half_s is None or pace.step is None or pace.ts_s is None:
        return None
    steps, took_s = pace.step - pace.half_step, pace.ts_s - pace.half_s
    least = 1 if pace.completed else LEAST_STEPS
    return took_s / steps if steps >= least and 0 < took_s < math.inf else None


class History:
    """The durations of a campaign's runs, the newest last, by which the times of others are forecast.

    `earlier` returns the durations of other campaigns, by `work_of` their configurations.
    """

    def __init__(self, paces: Iterable[Pace], earlier: Callable[[], Mapping[str, Sequence[Pace]]] = dict) -> None:
        self._read_earlier = earlier
        self._known: dict[tuple[_Point, int | None], Forecast | None] = {}
        self.paces = {pace.run_id: pace for pace in paces}
        self._runs, self._alike = list[_Measured](), defaultdict[_Point, list[_Measured]](list)
        for pace in self.paces.values():
            run = _Measured.of(pace)
            if run.step_s is not None or run.whole_s is not None:
                self._runs.append(run)
                self._alike[_speed(pace.params)].append(run)

    @cached_property
    def _earlier(self) -> dict[str, list[_Measured]]:
        return {work: [*map(_Measured.of, paces)] for work, paces in self._read_earlier().items()}

    def forecast(
        self, params: Mapping[str, Any], config: Callable[[], Mapping[str, Any]], steps: int | None
    ) -> Forecast | None:
        """Return the likely duration of a run with so many `steps` (None: only the script knows them), or None."""
        if not (self._runs or self._earlier):
            return None
        key = _speed(params), steps
        if key not in self._known:
            found = self._of(self._alike.get(key[0], ()), steps, Basis.REPEATS)
            if found is None and self._earlier:
                found = self._of(self._earlier.get(work_of(config()), ()), steps, Basis.EARLIER)
            self._known[key] = found or self._of(self._runs, steps, Basis.NEAREST)
        return self._known[key]

    def _of(self, runs: Sequence[_Measured], steps: int | None, basis: Basis) -> Forecast | None:
        runs = runs[-(MOST_NEAR if basis is Basis.NEAREST else NEWEST) :]
        paced = [] if steps is None else [(run.start_s, run.step_s) for run in runs if run.step_s is not None]
        times_s = [start_s + (steps or 0) * step_s for start_s, step_s in paced]
        ends_s = [run.end_s for run in runs if run.end_s is not None] if times_s else [0.0]
        times_s = times_s or [run.whole_s for run in runs if run.whole_s is not None]
        if not times_s or (basis is Basis.NEAREST and max(times_s) > ALIKE * min(times_s)):
            return None
        end_s = statistics.median(ends_s or [run.end_s for run in self._runs if run.end_s is not None] or [0.0])
        return Forecast(max(0.0, statistics.median(times_s)) + end_s, basis, end_s)


def _speed(params: Mapping[str, Any]) -> _Point:
    return tuple(sorted((name, _ENCODED(value)) for name, value in params.items() if name not in _NO_MATTER))


def work_of(config: Mapping[str, Any]) -> str:
    """Return a key of runs whose steps take as long: the same model, batch, strategy, command and machine."""
    train, slurm = config.get("train") or {}, config.get("slurm") or {}
    same = {name: value for name, value in train.items() if name not in _NO_MATTER and value}
    job = [slurm.get(name) for name in _OF_JOBS] if config.get("executor") != "local" else []
    return json.dumps([same, job, slurm.get("nodes"), [config.get(name) or None for name in _OF_WORK]], sort_keys=True)


def read_history(conn: Connection, campaign_id: int | None, without: Collection[int] = ()) -> History:
    """Return the durations of a campaign's runs, except these, and of earlier campaigns, which need an open `conn`."""

    def earlier() -> Mapping[str, Sequence[Pace]]:
        works = {run_id: work_of(config) for run_id, config in campaigns.completed_elsewhere(conn, campaign_id)}
        paces: dict[str, list[Pace]] = defaultdict(list)
        for pace in campaigns.paces(conn, None, works) if works else ():
            paces[works[pace.run_id]].append(pace)
        return paces

    paces = campaigns.paces(conn, campaign_id) if campaign_id is not None else ()
    return History((pace for pace in paces if pace.run_id not in without), earlier)


def run_left_s(run: RunStatus, pace: Pace | None, like: Forecast | None, now_s: float) -> float | None:
    """Return how long a running run will still take: `like` forecasts all its steps if it has no pace of its own."""
    if run.shown != RunState.RUNNING or pace is None:
        return None
    step_s, end_s = step_time_s(pace), like.end_s if like else 0.0
    if step_s is None or pace.step is None or pace.ts_s is None or run.target_step is None:
        left_s = like.seconds - (now_s - pace.started_s) if like and pace.started_s else 0.0
    else:
        silent_s = max(0.0, now_s - pace.ts_s)
        silent = silent_s > max(QUIET_S, QUIET_STEPS * step_s, end_s)
        left_s = 0.0 if silent else (run.target_step - pace.step) * step_s + end_s - silent_s
    return left_s if left_s > 0 else None


class TimeLeft(NamedTuple):
    """How long a campaign will still take, and its running runs by id; None, and left out, if nobody knows."""

    seconds: float | None
    runs: Mapping[int, float]
    waiting_s: float | None = None  # if none is running, of the runs that wait, one after another


UNKNOWN: Final = TimeLeft(None, {})


def time_left(conn: Connection, campaign_id: int, rows: Sequence[RunStatus], now_s: float) -> TimeLeft:
    """Forecast the end of a campaign from its store."""
    running = any(row.state is RunState.RUNNING for row in rows)
    waiting = [row for row in rows if row.shown in (RunState.PENDING, RunState.QUEUED)]
    if not (running or waiting):
        return UNKNOWN
    history, params = read_history(conn, campaign_id), campaigns.unsettled(conn, campaign_id, "params")
    configs = cache(lambda: campaigns.unsettled(conn, campaign_id, "config"))  # large, and only for earlier campaigns

    def forecast(row: RunStatus, steps: int | None) -> Forecast | None:
        own = params.get(row.run_id)
        return None if own is None else history.forecast(own, lambda: configs()[row.run_id], steps)

    left: dict[int, float] = {}
    for row in rows:
        if row.shown == RunState.RUNNING and (pace := history.paces.get(row.run_id)):
            steps = None if row.target_step is None else row.target_step - (pace.start_step or 0)
            left_s = run_left_s(row, pace, forecast(row, steps), now_s)
            left |= {} if left_s is None else {row.run_id: left_s}
    steps_left = ((row, row.target_step and max(0, row.target_step - (row.step or 0))) for row in waiting)
    likely = [found and found.seconds for row, steps in steps_left for found in [forecast(row, steps)]]
    waiting_s = None if running or None in likely else sum(filter(None, likely))
    return TimeLeft(campaign_left_s(rows, left, likely), left, waiting_s)


def campaign_left_s(
    runs: Iterable[RunStatus], left_s: Mapping[int, float], waiting_s: Iterable[float | None]
) -> float | None:
    """Return how long a campaign will still take with as many runs at once as now; None if nobody knows.

    `left_s` is of running runs, by id; `waiting_s` of runs that wait, each of which starts when another ends.
    """
    unsettled = [run for run in runs if run.state in UNSETTLED_RUN and run.shown != CANCELLING]
    running = [left_s.get(run.run_id) for run in unsettled if run.state is RunState.RUNNING]
    ends_s = [end_s for end_s in running if end_s is not None]
    if not ends_s or len(ends_s) < len(running) or any(run.stage is not Stage.FULL for run in unsettled):
        return None
    heapq.heapify(ends_s)
    for seconds in waiting_s:
        if seconds is None:
            return None
        heapq.heapreplace(ends_s, ends_s[0] + seconds)
    return max(ends_s)
