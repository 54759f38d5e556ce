"""Which points run in full, by known figures of their screening runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.metrics import StepFigures
from dscampaign.db.records import RunRow
from dscampaign.db.states import AttemptState, RunState, Stage
from dscampaign.orchestrator.reconcile.actions import Submit
from dscampaign.orchestrator.reconcile.decide import decide
from dscampaign.orchestrator.reconcile.screening import Screening, ScreeningRule, gates
from dscampaign.orchestrator.spec.objective import Objective
from dscampaign.tests.support.policy_world import (
    CAMPAIGN,
    attempt_row,
    ended_row,
    of_kind,
    run_view,
    snapshot,
)

FAST_AND_BIG = Screening(step_s=0.100, tokens_per_s=100e3, mem_gb=40.0, loss=5.0)
SLOW_AND_SMALL = Screening(step_s=0.200, tokens_per_s=50e3, mem_gb=10.0, loss=5.1)
BETWEEN = Screening(step_s=0.150, tokens_per_s=66e3, mem_gb=20.0, loss=4.9)
BEATEN = Screening(step_s=0.210, tokens_per_s=48e3, mem_gb=41.0, loss=5.2)
POINTS = {"fast": FAST_AND_BIG, "small": SLOW_AND_SMALL, "between": BETWEEN, "beaten": BEATEN}


@pytest.mark.parametrize(
    ("keep", "objective", "left_out"),
    [
        ("pareto", None, {"beaten"}),
        ("pareto", Objective.LOSS, {"small", "beaten"}),
        ("pareto", Objective.TIME_TO_LOSS, {"small", "beaten"}),
        (1, None, {"small", "between", "beaten"}),
        (2, None, {"small", "beaten"}),
        (2, Objective.MEMORY, {"fast", "beaten"}),
        (2, Objective.LOSS, {"small", "beaten"}),
        (3, Objective.ENERGY, {"beaten"}),
        (9, None, set()),
        ("within 10%", None, {"small", "between", "beaten"}),
        ("within 40%", None, {"small", "beaten"}),
        ("within 3%", Objective.LOSS, {"small", "beaten"}),
        ("within 100%", Objective.MEMORY, {"fast", "beaten"}),
    ],
)
def test_the_rule_selects_the_points_that_are_left_out(
    keep: str | int, objective: Objective | None, left_out: set[str]
) -> None:
    assert set(ScreeningRule(keep, objective).left_out(POINTS)) == left_out


def test_points_within_the_noise_are_kept() -> None:
    near = replace(FAST_AND_BIG, step_s=0.102, tokens_per_s=98e3, mem_gb=40.5)
    assert ScreeningRule("pareto").left_out({"a": FAST_AND_BIG, "b": near}) == []
    clearly = replace(near, tokens_per_s=96e3)
    assert ScreeningRule("pareto").left_out({"a": FAST_AND_BIG, "b": clearly}) == ["b"]


def test_a_point_without_figures_is_kept() -> None:
    unknown, diverged = Screening(), replace(BETWEEN, loss=float("nan"))
    for keep in ("pareto", 1, "within 10%"):
        assert "unknown" not in ScreeningRule(keep).left_out({**POINTS, "unknown": unknown})
        assert "diverged" not in ScreeningRule(keep, Objective.LOSS).left_out(
            {"a": SLOW_AND_SMALL, "diverged": diverged}
        )


def test_figures_of_a_run_leave_out_its_warm_up() -> None:
    slow, steady = StepFigures(9.0, 10.0, 30.0, 8.0, None), StepFigures(1.0, 90.0, 20.0, 5.0, None)
    assert Screening.of([slow] * 20 + [steady] * 30, (), 20) == Screening(1.0, 90.0, 30.0, 5.0)
    assert Screening.of([slow] * 2 + [steady] * 2, (), 20).step_s == 1.0  # of a short run, its first half
    assert Screening.of([slow] * 2 + [steady] * 2 + [slow], (), 1).step_s == 5.0
    evaluated = StepFigures(1.0, 90.0, 20.0, 5.0, 4.5)
    assert Screening.of([steady] * 9 + [evaluated], (), 20).loss == 4.5
    assert Screening.of([], (), 20) == Screening()


def run(number: int, point: str, stage: Stage = Stage.FULL, state: RunState = RunState.PENDING, **more: Any) -> RunRow:
    """One of a campaign's runs; its id is `number`."""
    suffix = "-screen" if stage is Stage.SCREENING else ""
    values = {
        "id": number,
        "campaign_id": 1,
        "name": point + suffix,
        "params": {"x": point},
        "config_hash": str(number),
        "config": {"executor": "local", "train": {"model": "gpt2"}},
        "repeat": 0,
        "state": state,
        "reason": "",
        "desired": "run",
        "generation": 0,
        "retry_epoch": 0,
        "target_step": 9,
        "ordinal": number,
        "not_before_s": None,
        "updated_s": 0.0,
        "stage": stage,
    }
    return RunRow(**{**values, **more})


def screen(number: int, point: str, state: RunState = RunState.COMPLETED, **more: Any) -> RunRow:
    return run(number, point, Stage.SCREENING, state, **more)


BEST = {"screen": {"steps": 50, "keep": 1}}


def test_full_runs_wait_until_every_point_is_screened() -> None:
    runs = [screen(1, "fast"), screen(2, "small", RunState.RUNNING), run(3, "fast"), run(4, "small")]
    waits = (RunState.PENDING, "waits for the screening: 1 of 2 points done")
    assert gates(runs, {1: FAST_AND_BIG}, BEST) == {3: waits, 4: waits}


def test_the_chosen_runs_start_once_every_point_is_screened() -> None:
    runs = [screen(1, "fast"), screen(2, "small"), run(3, "fast"), run(4, "small"), run(5, "small", name="small-r1")]
    measured = {1: FAST_AND_BIG, 2: SLOW_AND_SMALL}
    held = gates(runs, measured, BEST)
    assert {number: state for number, (state, _) in held.items()} == {4: RunState.SCREENED, 5: RunState.SCREENED}
    assert gates(runs, measured, {}) == {}


def test_a_run_that_has_begun_or_is_asked_for_goes_on() -> None:
    runs = [screen(1, "fast"), screen(2, "small"), run(4, "small", generation=1), run(5, "small", retry_epoch=1)]
    assert gates(runs, {1: FAST_AND_BIG, 2: SLOW_AND_SMALL}, BEST) == {}


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        (RunState.FAILED, "No module named x", "its screening run small-screen failed: No module named x"),
        (RunState.HELD, "", "its screening run small-screen is held"),
        (RunState.CANCELLED, "", "its screening run small-screen was cancelled"),
    ],
)
def test_a_point_whose_screening_did_not_end_well_is_left_out(state: RunState, reason: str, said: str) -> None:
    runs = [screen(1, "fast"), screen(2, "small", state, reason=reason), run(3, "fast"), run(4, "small")]
    assert gates(runs, {1: FAST_AND_BIG}, BEST) == {4: (RunState.SCREENED, said)}


def test_only_points_that_do_the_same_work_are_compared() -> None:
    other = {"executor": "local", "train": {"model": "gpt2-large"}}
    runs = [screen(1, "fast"), screen(2, "small", config=other), run(3, "fast"), run(4, "small", config=other)]
    assert gates(runs, {1: FAST_AND_BIG, 2: SLOW_AND_SMALL}, BEST) == {}
    runs[1] = replace(runs[1], state=RunState.RUNNING)
    assert gates(runs, {1: FAST_AND_BIG}, BEST).keys() == {4}  # the other model's runs do not wait for it


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.CANCELLED])
def test_a_point_whose_screening_run_is_cancelled_never_runs_in_full(state: RunState) -> None:
    screened = run_view(ended_row(1, "completed", last_step=9), run=screen(1, "fast", generation=1, config_hash="hash"))
    active = [attempt_row(state=AttemptState.QUEUED, run_id=2)] if state is RunState.QUEUED else []
    cancelled = run_view(*active, run=screen(2, "small", state, desired="cancel", generation=len(active)))
    views = [screened, cancelled, *(run_view(run=run(number, "small", repeat=number)) for number in (3, 4))]
    campaign = replace(CAMPAIGN, provenance=BEST)
    actions = decide(snapshot(*views, campaign=campaign, screenings={1: FAST_AND_BIG}))
    assert of_kind(Submit, actions) == []
