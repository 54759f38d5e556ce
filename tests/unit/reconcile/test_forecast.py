"""How long runs and a campaign will take: from what like runs took, and nothing where none is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dscampaign.db.campaigns import Pace
from dscampaign.db.records import RunStatus
from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.reconcile.forecast import (
    Basis,
    Forecast,
    History,
    campaign_left_s,
    run_left_s,
    step_time_s,
    work_of,
)

NOW_S = 10_000.0
LIKE = Forecast(2000.0, Basis.REPEATS, 30.0)
TRAIN = {"model": "gpt2", "global_batch": 8, "zero_stage": 1, "lr": 0.1, "steps": 100}
SLURM = {"partition": "h100", "gpus_per_node": "8", "time": "1:00:00"}
CONFIG = {"executor": "slurm", "train": TRAIN, "slurm": SLURM}


def run(run_id: int = 1, state: RunState = RunState.RUNNING, **values: Any) -> RunStatus:
    known = {"name": f"lr-{run_id}", "target_step": 1000, "step": 400, "ts_s": NOW_S, "started_s": NOW_S - 900}
    known |= {"desired": "run", "stage": Stage.FULL}
    blank = dict.fromkeys(RunStatus._fields)
    return RunStatus(**{**blank, "run_id": run_id, "state": state, "reason": "", **known, **values})


def open_pace(**values: Any) -> Pace:
    """Half way through its 400 steps an attempt was at step 200, 2 s a step ago."""
    known = {"params": {}, "completed": False, "started_s": NOW_S - 900, "start_step": 0}
    steps = {"half_step": 200, "half_s": NOW_S - 400, "step": 400, "ts_s": NOW_S, "ended_s": None}
    return Pace(**{"run_id": 1, **known, **steps, **values})


def ended(run_id: int, params: Mapping[str, Any], step_s: float = 1.0, steps: int = 100, **values: Any) -> Pace:
    """A minute until its steps, the first half of them in the same pace, and 10 s after the last."""
    times = {"half_s": 60 + steps // 2 * step_s, "ts_s": 60 + steps * step_s, "ended_s": 70 + steps * step_s}
    known = {"started_s": 0.0, "half_step": steps // 2, "step": steps, "completed": True, "params": dict(params)}
    return open_pace(**{"run_id": run_id, **known, **times, **values})


def forecast(
    history: History, params: Mapping[str, Any], steps: int | None = 100, config: Any = CONFIG
) -> tuple[float, Basis] | None:
    found = history.forecast(params, lambda: config, steps)
    return found and (found.seconds, found.basis)


def test_repeats_show_start_steps_and_end() -> None:
    history = History([ended(1, {"zero": 1}), ended(2, {"zero": 1}, step_s=3.0), ended(3, {"zero": 1})])
    assert forecast(history, {"zero": 1}) == (170.0, Basis.REPEATS)
    assert forecast(history, {"zero": 1}, 1000) == (1070.0, Basis.REPEATS)
    assert forecast(history, {"zero": 1}, None) == (170.0, Basis.REPEATS)  # only its script knows the steps


def test_a_slow_start_of_the_steps_counts_once() -> None:
    slow = ended(1, {}, half_s=60 + 50 + 90, ts_s=160 + 90, ended_s=170 + 90)
    assert forecast(History([slow]), {}, 200) == (360.0, Basis.REPEATS)


def test_the_newest_repeats_count() -> None:
    paces = [ended(n, {}, step_s=1.0) for n in range(20)] + [ended(n, {}, step_s=2.0) for n in range(20, 25)]
    assert forecast(History(paces), {}) == (270.0, Basis.REPEATS)


def test_a_learning_rate_changes_no_time() -> None:
    history = History([ended(1, {"lr": 0.1, "zero": 1}), ended(2, {"lr": 0.2, "zero": 2}, step_s=5.0)])
    assert forecast(history, {"lr": 0.3, "zero": 1}) == (170.0, Basis.REPEATS)


def test_other_conditions_count_if_they_are_alike() -> None:
    alike = History([ended(1, {"zero": 1}), ended(2, {"zero": 2})])
    assert forecast(alike, {"zero": 3}) == (170.0, Basis.NEAREST)
    apart = History([ended(1, {"zero": 1}), ended(2, {"zero": 2}, step_s=9.0)])
    assert forecast(apart, {"zero": 3}) is None


def earlier(**train: Any) -> History:
    config = {**CONFIG, "train": {**TRAIN, **train}}
    return History([], lambda: {work_of(config): [ended(1, {"x": 1})]})


def test_an_earlier_campaign_with_the_same_work_counts() -> None:
    assert forecast(earlier(lr=0.5, seed=9, steps=5, warmup_steps=3), {"zero": 1}) == (170.0, Basis.EARLIER)
    others = {"model": "gpt2-xl"}, {"global_batch": 16}, {"zero_stage": 3}, {"compile": True}, {"eval_every": 10}
    assert all(forecast(earlier(**other), {"zero": 1}) is None for other in others)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"slurm": {**SLURM, "time": "9:00:00", "account": "x", "runs_per_job": 4}}, True),
        ({"slurm": {**SLURM, "gpus_per_node": "4"}}, False),
        ({"slurm": {**SLURM, "partition": "a100"}}, False),
        ({"command": ["train.py", "--big"]}, False),
        ({"retry": {"oom": 9}, "telemetry_s": 5}, True),
    ],
)
def test_work_is_the_same_with_the_same_machine_and_command(change: dict[str, Any], *, same: bool) -> None:
    assert (work_of({**CONFIG, **change}) == work_of(CONFIG)) is same


def test_what_nobody_has_measured_has_no_forecast() -> None:
    silent: dict[str, Any] = dict.fromkeys(("half_step", "half_s", "step", "ts_s"))
    early = open_pace(half_step=2, step=3, half_s=NOW_S - 2)
    for paces in [], [early], [open_pace(**silent)], [ended(1, {}, completed=False, **silent)]:
        assert forecast(History(paces), {}) is None
    without_metrics = History([ended(1, {}, ended_s=500.0, **silent)])
    assert forecast(without_metrics, {}, None) == (500.0, Basis.REPEATS)


def test_a_resumed_run_shows_its_pace_and_not_its_duration() -> None:
    resumed = ended(1, {}, start_step=900, half_step=950, step=1000)
    assert forecast(History([resumed]), {}, 1000) == (1070.0, Basis.REPEATS)
    assert forecast(History([resumed]), {}, None) is None


def test_a_run_goes_on_at_the_pace_of_its_second_half() -> None:
    assert run_left_s(run(), open_pace(), None, NOW_S) == 1200.0  # 2 s a step
    assert run_left_s(run(), open_pace(half_s=NOW_S - 430, ts_s=NOW_S - 30), None, NOW_S) == 1170.0
    assert run_left_s(run(), open_pace(half_s=NOW_S - 370, ts_s=NOW_S + 30), None, NOW_S) == 1200.0  # a clock ahead
    assert run_left_s(run(), open_pace(), LIKE, NOW_S) == 1230.0


def test_a_run_without_a_pace_takes_as_long_as_its_like() -> None:
    first = open_pace(half_step=None, half_s=None, step=None, ts_s=None)
    assert run_left_s(run(), first, LIKE, NOW_S) == 1100.0
    assert run_left_s(run(target_step=None), open_pace(), LIKE, NOW_S) == 1100.0
    assert run_left_s(run(), first, LIKE, NOW_S + 1100) is None  # it takes longer: nobody knows how much
    assert run_left_s(run(), open_pace(step=1000, half_step=800), LIKE, NOW_S + 10) == 20.0


@pytest.mark.parametrize(
    ("values", "paced"),
    [
        ({"state": RunState.QUEUED}, {}),
        ({"desired": "cancel"}, {}),
        ({"target_step": None}, {}),
        ({}, {"step": 1000, "half_step": 500}),  # it evaluates, or saves: for how long nobody knows
        ({}, {"step": 203}),
        ({}, {"half_s": NOW_S + 1}),  # a clock that was set back
        ({}, {"ts_s": float("inf")}),
        ({}, {"ts_s": float("nan")}),
        ({}, {"half_s": NOW_S - 600, "ts_s": NOW_S - 200}),  # silent for a hundred steps
        ({}, {"step": 999, "ts_s": NOW_S - 10}),  # its end was due
    ],
)
def test_a_run_without_a_pace_or_a_like_has_no_estimate(values: dict[str, Any], paced: dict[str, Any]) -> None:
    assert run_left_s(run(**values), open_pace(**paced), None, NOW_S) is None


def test_few_steps_show_a_pace_only_if_there_are_no_more() -> None:
    assert step_time_s(open_pace(half_step=397)) is None
    assert step_time_s(open_pace(half_step=399, completed=True)) == 400.0


def waiting(run_id: int, **values: Any) -> RunStatus:
    return run(run_id, RunState.PENDING, **{"step": None, "ts_s": None, "started_s": None, **values})


def test_what_waits_starts_as_others_end() -> None:
    runs = [run(1, RunState.COMPLETED, step=1000), run(2), run(3, step=700), waiting(4), waiting(5, step=600)]
    assert campaign_left_s(runs, {2: 1200.0, 3: 900.0}, [500.0, 100.0]) == 1400.0
    assert campaign_left_s(runs[:3], {2: 1200.0, 3: 900.0}, []) == 1200.0


def test_runs_that_are_being_cancelled_take_no_time() -> None:
    cancelled = [run(2, desired="cancel"), waiting(3, desired="cancel")]
    assert campaign_left_s(cancelled, {}, []) is None
    assert campaign_left_s([run(4), *cancelled], {4: 10.0}, []) == 10.0


@pytest.mark.parametrize(
    ("runs", "left", "waiting_s"),
    [
        ([waiting(1)], {}, [10.0]),  # nothing runs: Slurm knows when, if anybody
        ([run(1), waiting(2)], {1: 10.0}, [None]),
        ([run(1), run(2)], {1: 10.0}, []),
        ([run(1, stage=Stage.SCREENING), waiting(2)], {1: 600.0}, [10.0]),
        ([], {}, []),
    ],
)
def test_a_campaign_of_which_a_part_is_unknown_has_no_estimate(
    runs: list[RunStatus], left: dict[int, float], waiting_s: list[float | None]
) -> None:
    assert campaign_left_s(runs, left, waiting_s) is None
