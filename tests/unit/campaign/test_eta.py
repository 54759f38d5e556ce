"""How long runs and a campaign will take: from what is known, and nothing where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.records import RunStatus
from dscampaign.db.states import RunState
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


def test_runs_that_are_being_cancelled_take_no_time() -> None:
    cancelled = [run(2, desired="cancel"), waiting(3, desired="cancel")]
    assert campaign_left_s(cancelled, {}, {1: 2000.0}, NOW_S) is None
    assert campaign_left_s([done(1), run(4), *cancelled], {4: 10.0}, {1: 2000.0}, NOW_S) == 10.0


def waiting(run_id: int, **values: Any) -> RunStatus:
    return run(run_id, RunState.PENDING, **{"step": None, "ts_s": None, "started_s": None, **values})


def done(run_id: int, **values: Any) -> RunStatus:
    return run(run_id, RunState.COMPLETED, step=1000, **values)


def test_runs_that_wait_take_as_long_as_their_siblings_as_many_at_once() -> None:
    repeats = [done(1), run(2), run(3), waiting(4), waiting(5), waiting(6)]
    runs = [one._replace(name=f"lr-r{one.run_id}", repeat=one.run_id) for one in repeats]
    left = {2: 100.0, 3: 300.0}  # 1.0 and 1.2 s a step from beginning to end; the one that is done took 2
    assert campaign_left_s(runs, left, {1: 2000.0}, NOW_S) == pytest.approx((100.0 + 300.0 + 3 * 1200.0) / 2)


@pytest.mark.parametrize(
    ("runs", "left", "spent"),
    [
        ([waiting(1), done(2)], {}, {2: 50.0}),  # nothing runs: Slurm knows when, if anybody
        ([run(1), waiting(2, target_step=None)], {1: 10.0}, {}),
        ([run(1), waiting(2)], {}, {}),  # none has a pace
        ([run(1), waiting(2), done(3), done(4)], {1: 10.0}, {3: 100.0, 4: 1000.0}),  # which of them is 2 like?
        ([done(1)], {}, {1: 50.0}),
        ([done(1), run(2, step=None)], {}, {1: 50.0}),  # it should have been over long ago
    ],
)
def test_a_campaign_with_too_few_paces_has_no_estimate(
    runs: list[RunStatus], left: dict[int, float], spent: dict[int, float]
) -> None:
    assert campaign_left_s(runs, left, spent, NOW_S) is None
