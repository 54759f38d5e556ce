"""Judgements of running attempts: hangs, and the bounds of the spec."""

from __future__ import annotations

import math

import pytest

from dscampaign.db.metrics import NewestLine
from dscampaign.jobs.agent.progress import Heartbeat, RankProgress
from dscampaign.orchestrator.reconcile.health import hang, hopeless
from dscampaign.orchestrator.spec.sections import PruneConfig


def beat(
    host: str, steps: dict[int, int], *, idle_s: float | None = 812.0, phase: str = "train", **phases: str
) -> Heartbeat:
    ranks = {rank: RankProgress(step, phases.get(f"rank{rank}", phase)) for rank, step in steps.items()}
    return Heartbeat(1.0, host, idle_s, phase, ranks)


def said(*beats: Heartbeat, p99_step_s: float | None = 0.4, steps: int = 500, factor: float = 20.0) -> str:
    return hang(beats, p99_step_s, steps, factor=factor, floor_s=600.0)


def test_a_hang_names_the_rank_that_the_others_wait_for() -> None:
    first, second = beat("n2", {0: 120, 1: 120, 2: 120}), beat("n3", {3: 120, 4: 120, 5: 119})
    expected = "no step for 812 s (p99 of a step: 0.4 s); rank 5 on n3 is stuck at step 119, the others at 120"
    assert said(first, second) == expected


@pytest.mark.parametrize("phase", ["start", "compile", "checkpoint", "eval", "export_of_weights"])
def test_only_training_hangs(phase: str) -> None:
    assert not said(beat("n1", {0: 50, 1: 50}, phase=phase))
    assert not said(beat("n1", {0: 50, 1: 50}, rank0=phase))  # the others wait for it, and rightly


def test_one_node_that_still_moves_is_no_hang() -> None:
    assert not said(beat("n1", {0: 50}), beat("n2", {1: 50}, idle_s=3.0))
    assert said(beat("n1", {0: 50}), beat("n2", {}, idle_s=None))  # says nothing


@pytest.mark.parametrize(
    ("idle_s", "p99_step_s", "hangs"),
    [(599.0, 0.4, False), (601.0, 0.4, True), (1999.0, 100.0, False), (2001.0, 100.0, True)],
)
def test_long_is_long_for_this_run_and_never_less_than_the_floor(idle_s: float, p99_step_s: float, hangs: bool) -> None:
    assert bool(said(beat("n1", {0: 50}, idle_s=idle_s), p99_step_s=p99_step_s)) == hangs


def test_an_attempt_of_few_steps_gets_six_times_the_patience() -> None:
    assert not said(beat("n1", {0: 5}, idle_s=3599.0), steps=5)
    assert said(beat("n1", {0: 5}, idle_s=3601.0), steps=5)


def test_too_few_samples_show_no_hang() -> None:
    one = beat("n1", {0: 19})
    assert not said(one, steps=19)
    assert not said(one, p99_step_s=None, steps=0)
    assert not said(one, factor=0.0)
    assert not said()
    assert not said(Heartbeat(1.0))


def lines(times_s: list[float | None], losses: list[float | None] | None = None, every: int = 1) -> list[NewestLine]:
    """Newest first, as the store has them."""
    said = losses or [1.0] * len(times_s)
    made = [
        NewestLine(every * number, time_s, every, loss)
        for number, (time_s, loss) in enumerate(zip(times_s, said, strict=True), 1)
    ]
    return made[::-1]


BOUND = PruneConfig(step_time_s=2.0)
SLOW = "a step takes 3 s, longer than prune.step_time_s = 2"


@pytest.mark.parametrize(
    ("times_s", "every", "why"),
    [
        ([9.0] * 20 + [3.0] * 20, 1, SLOW),  # the warm-up is not what counts
        ([9.0] * 20 + [3.0] * 19, 1, ""),
        ([9.0] * 20 + [1.0] * 40, 1, ""),
        ([9.0] * 20 + [2.0] * 40, 1, ""),
        ([1.0] * 20 + [1.0] * 11 + [3.0] * 12, 1, SLOW),  # the median
        ([9.0] * 4 + [3.0] * 4, 5, SLOW),  # a line of five steps
        ([None] * 60, 1, ""),
        ([], 1, ""),
    ],
)
def test_a_run_whose_steps_take_too_long(times_s: list[float | None], every: int, why: str) -> None:
    assert hopeless(lines(times_s, every=every), 0, BOUND, 20) == why
    assert hopeless(lines(times_s, every=every), 0, PruneConfig(), 20) == ""


@pytest.mark.parametrize(
    ("losses", "why"),
    [
        ([1.0] * 20 + [math.nan] * 10, "the loss is not finite from step 21 to step 30"),
        ([1.0] * 20 + [math.nan] * 9, ""),
        ([math.nan] * 20 + [1.0], ""),
        ([math.nan, None] * 10, "the loss is not finite from step 1 to step 19"),
        ([None] * 30, ""),
    ],
)
def test_a_run_whose_losses_are_not_finite(losses: list[float | None], why: str) -> None:
    given = lines([None] * len(losses), losses)
    assert hopeless(given, 0, PruneConfig(not_finite=True), 20) == why
    assert hopeless(given, 0, PruneConfig(), 20) == ""


def test_a_loss_of_0_beside_a_gradient_that_is_lost_is_not_finite() -> None:
    kept, lost = NewestLine(1, 1.0, 1, 0.0, None, 0.5), NewestLine(1, 1.0, 1, 0.0, None, math.nan)
    bound = PruneConfig(not_finite=True)
    assert hopeless([lost] * 10, 0, bound, 20).startswith("the loss is not finite")
    assert hopeless([*[lost] * 9, kept], 0, bound, 20) == ""
