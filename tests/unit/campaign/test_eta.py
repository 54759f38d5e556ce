"""How long runs and a campaign will take: from what is known, and nothing where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.records import RunStatus
from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.campaign.status import campaign_left_s, run_left_s

NOW_S = 10_000.0


def run(run_id: int = 1, state: RunState = RunState.RUNNING, **values: Any) -> RunStatus:
    known = {"name": f"lr-{run_id}", "target_step": 1000, "step": 400, "ts_s": NOW_S, "started_s": NOW_S - 900}
    known["desired"] = "run"
    blank = dict.fromkeys(RunStatus._fields)
    return RunStatus(**{**blank, "run_id": run_id, "state": state, "reason": "", **known, **values})


def test_a_run_goes_on_at_the_pace_of_its_second_half() -> None:
    assert run_left_s(run(), (200, NOW_S - 400), NOW_S) == 1200.0  # 2 s a step
    assert run_left_s(run(ts_s=NOW_S - 30), (200, NOW_S - 430), NOW_S) == 1170.0  # its last step is a while ago
    assert run_left_s(run(ts_s=NOW_S + 30), (200, NOW_S - 370), NOW_S) == 1200.0  # a node's clock is ahead


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ({}, None),
        ({"state": RunState.QUEUED}, (200, NOW_S - 400)),
        ({"desired": "cancel"}, (200, NOW_S - 400)),
        ({"target_step": None}, (200, NOW_S - 400)),
        ({"step": 1000}, (500, NOW_S - 400)),  # it evaluates, or saves: for how long nobody knows
        ({"step": 203}, (200, NOW_S - 400)),
        ({}, (200, NOW_S - 1)),
        ({}, (200, NOW_S + 400)),  # a clock that was set back
        ({"ts_s": float("inf")}, (200, NOW_S - 400)),
        ({"ts_s": float("nan")}, (200, NOW_S - 400)),
        ({"ts_s": NOW_S - 200}, (200, NOW_S - 600)),  # silent for a hundred steps
    ],
)
def test_a_run_without_a_pace_has_no_estimate(values: dict[str, Any], since: tuple[int, float]) -> None:
    assert run_left_s(run(**values), since, NOW_S) is None


def waiting(run_id: int, **values: Any) -> RunStatus:
    return run(run_id, RunState.PENDING, **{"step": None, "ts_s": None, "started_s": None, **values})


def test_runs_that_wait_take_the_pace_of_those_that_run_as_many_at_once() -> None:
    runs = [run(1, RunState.COMPLETED, step=1000), run(2), run(3, step=700), waiting(4), waiting(5, step=600)]
    left = {2: 1200.0, 3: 900.0}  # 2 and 3 s a step
    assert campaign_left_s(runs, left) == pytest.approx((1200.0 + 900.0 + 1400 * 2.5) / 2)
    assert campaign_left_s(runs[:3], left) == 1200.0


def test_runs_that_are_being_cancelled_take_no_time() -> None:
    cancelled = [run(2, desired="cancel"), waiting(3, desired="cancel")]
    assert campaign_left_s(cancelled, {}) is None
    assert campaign_left_s([run(4), *cancelled], {4: 10.0}) == 10.0


@pytest.mark.parametrize(
    ("runs", "left"),
    [
        ([waiting(1)], {}),  # nothing runs: Slurm knows when, if anybody
        ([run(1), waiting(2, target_step=None)], {1: 10.0}),
        ([run(1), waiting(2)], {}),  # none has a pace
        ([run(1), run(2), waiting(3)], {1: 60.0, 2: 1200.0}),  # which of them is 3 like?
        ([run(1, stage=Stage.SCREENING), waiting(2)], {1: 600.0}),
        ([], {}),
    ],
)
def test_a_campaign_with_too_few_paces_has_no_estimate(runs: list[RunStatus], left: dict[int, float]) -> None:
    assert campaign_left_s(runs, left) is None
