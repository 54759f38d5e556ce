"""Which runs are hopeless by the bounds of their spec."""

from __future__ import annotations

import math

import pytest

from dscampaign.db.metrics import NewestLine
from dscampaign.orchestrator.reconcile.health import hopeless
from dscampaign.orchestrator.spec.retry_section import PruneConfig


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


def test_one_line_decides_nothing_however_far_ahead_it_is() -> None:
    """A script may report tokens, or samples, as the step of a line."""
    far = NewestLine(10**15, 5.0, 10**15 - 60, 1.0)
    assert hopeless([far], 0, BOUND, 20) == ""
    assert hopeless([far, *lines([1.0] * 60)], 0, BOUND, 20) == ""
    assert hopeless([far, far], 0, BOUND, 20).startswith("a step takes 5 s")


def test_a_resumed_attempt_warms_up_again() -> None:
    newest = [NewestLine(1000 + number, 3.0, 1, 1.0) for number in range(30, 0, -1)]
    assert hopeless(newest, 1000, BOUND, 20) == ""
    assert hopeless(newest, 980, BOUND, 20) == SLOW
    assert hopeless(newest, 980, BOUND, 31) == ""


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
