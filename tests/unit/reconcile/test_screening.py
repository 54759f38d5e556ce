"""Which points run in full, by known figures of their screening runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.records import RunRow
from dscampaign.db.states import RunState, Stage
from dscampaign.orchestrator.reconcile.screening import Screening, ScreeningRule, gates
from dscampaign.orchestrator.spec.objective import Objective

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
