"""Which steps lines stand for: those that are lost, made again, or written between two lines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dscampaign.orchestrator.report.measure.flags import flags_of
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Planted, Try, results_at

PlantStore = Callable[..., str]


def first_run(url: str) -> MeasuredRun:
    return results_at(url).runs[0]


def test_lost_lines_are_not_steps_that_were_made_again(planted_url: PlantStore) -> None:
    lost = frozenset(range(50, 60))
    run = first_run(planted_url(Planted("lost", drop=lost)))
    assert (run.quality.received, run.quality.gaps, run.quality.repeated) == (90, 10, 0)


def test_lost_lines_and_steps_that_were_made_again_are_told_apart(planted_url: PlantStore) -> None:
    tries = (Try(0, 60, "node"), Try(50, 100))
    run = first_run(planted_url(Planted("both", drop=frozenset(range(20, 30)), tries=tries)))
    assert (run.quality.received, run.quality.gaps, run.quality.repeated) == (90, 10, 10)


SELDOM = {"log_every": 10}
SILENT = frozenset(step for step in range(1, 201) if step % 10)


def test_an_attempt_that_went_on_between_two_lines_has_lost_none(planted_url: PlantStore) -> None:
    """Lines 10 to 150 of the first attempt, from its step 145 on 150 to 200 of the second."""
    tries = (Try(0, 155, "node"), Try(145, 200))
    run = first_run(planted_url(Planted("seldom", steps=200, drop=SILENT, train=SELDOM, tries=tries)))
    assert (run.quality.received, run.quality.gaps, run.quality.repeated) == (200, 0, 5)
    assert not any("steps reported" in flag for flag in flags_of(run))
    assert run.timing
    assert run.timing.steps + run.timing.warm_up_steps == 200
    assert run.cost.training == pytest.approx(2 * run.timing.window_s)
