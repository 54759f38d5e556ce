"""Estimates how long a run and a campaign still take, from their own pace. Pure."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from dscampaign.db.records import RunStatus
from dscampaign.db.states import CANCELLING, UNSETTLED_RUN, RunState, Stage

LEAST_STEPS, LEAST_S = 5, 5.0
"""Fewer steps, or less time, show no pace: the first steps are slow, and evaluations come every so often."""

QUIET_S, QUIET_STEPS = 120.0, 20.0
"""A run that has been silent for longer may not go on as it did."""

ALIKE = 2.0
"""If slow conditions take longer than so many times the fast ones, the time of another is unknown."""


def run_left_s(run: RunStatus, since: tuple[int, float] | None, now_s: float) -> float | None:
    """Return the seconds until the run's target step, at its pace since a step: evaluations and saves included.

    Args:
        since: an earlier step of its newest attempt, and its time by the clock of the node.
    """
    if run.shown != RunState.RUNNING or since is None or None in (run.step, run.target_step, run.ts_s):
        return None
    step, target, ts_s = run.step or 0, run.target_step or 0, run.ts_s or 0.0
    steps, took_s, silent_s = step - since[0], ts_s - since[1], max(0.0, now_s - ts_s)
    if step >= target or steps < LEAST_STEPS or not LEAST_S <= took_s < math.inf:
        return None
    pace_s = took_s / steps
    if silent_s > max(QUIET_S, QUIET_STEPS * pace_s):
        return None
    return max(0.0, (target - step) * pace_s - silent_s)


def campaign_left_s(
    runs: Sequence[RunStatus], left_s: Mapping[int, float], spent_s: Mapping[int, float], now_s: float
) -> float | None:
    """Return the seconds until all runs not being cancelled are over, as many at once as now; None if unknown.

    Args:
        runs: all of the campaign.
        left_s: by run id, the estimates of running runs.
        spent_s: by run id, the seconds of its ended attempts.
    """
    unsettled = [run for run in runs if run.state in UNSETTLED_RUN and run.shown != CANCELLING]
    running = [run for run in unsettled if run.state is RunState.RUNNING]
    if not running or not all(run.target_step for run in unsettled):
        return None
    if any(run.stage is Stage.SCREENING for run in unsettled):
        return None  # which runs follow is not known
    paces = _paces(runs, left_s, spent_s, now_s)
    known = sorted(paces.values())
    usual_s = statistics.median(known) if known and known[-1] <= ALIKE * known[0] else None
    needed_s = [left_s.get(run.run_id, _needed_s(run, paces.get(run.condition, usual_s), now_s)) for run in unsettled]
    if None in needed_s:
        return None
    return max(
        sum(seconds or 0.0 for seconds in needed_s) / len(running), *(left_s.get(r.run_id, 0.0) for r in running)
    )


def _paces(
    runs: Sequence[RunStatus], left_s: Mapping[int, float], spent_s: Mapping[int, float], now_s: float
) -> dict[str, float]:
    found = defaultdict(list)
    for run in runs:
        whole_s = None
        if run.state is RunState.COMPLETED and not run.early:
            whole_s = spent_s.get(run.run_id)
        elif run.run_id in left_s and run.started_s:
            whole_s = spent_s.get(run.run_id, 0.0) + max(0.0, now_s - run.started_s) + left_s[run.run_id]
        if whole_s and run.target_step:
            found[run.condition].append(whole_s / run.target_step)
    return {condition: statistics.median(values) for condition, values in found.items()}


def _needed_s(run: RunStatus, pace_s: float | None, now_s: float) -> float | None:
    """Return the time of a run without an estimate of its own; None if it should have ended long ago."""
    if pace_s is None:
        return None
    needed_s = pace_s * max(0, (run.target_step or 0) - (run.step or 0))
    runs_s = now_s - run.started_s if run.state is RunState.RUNNING and run.started_s and needed_s else 0.0
    return needed_s if runs_s <= max(QUIET_S, ALIKE * needed_s) else None
