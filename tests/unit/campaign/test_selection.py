"""Which runs a user means, and what is said where there are none."""

from typing import NamedTuple

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.selection import Selection
from dscampaign.orchestrator.errors import UserError


class Named(NamedTuple):
    """A run, as far as it is selected by."""

    name: str
    state: RunState


RUNS = [
    Named("zero_stage-2_precision-bf16", RunState.COMPLETED),
    Named("zero_stage-3_precision-bf16", RunState.FAILED),
    Named("zero_stage-3_precision-fp16", RunState.QUEUED),
]


@pytest.mark.parametrize(
    ("states", "patterns", "places"),
    [
        ([], [], [0, 1, 2]),
        ([RunState.FAILED, RunState.QUEUED], [], [1, 2]),
        ([], ["zero_stage-3*"], [1, 2]),
        ([], ["*fp16", "zero_stage-2_precision-bf16"], [0, 2]),
        ([RunState.FAILED], ["*bf16"], [1]),
        ([RunState.HELD], ["*bf16"], []),
    ],
)
def test_runs_are_chosen_by_state_and_by_name(states: list[RunState], patterns: list[str], places: list[int]) -> None:
    assert Selection(states, patterns).of(RUNS, "sweep") == [RUNS[place] for place in places]


@pytest.mark.parametrize(
    ("pattern", "error", "hint"),
    [
        ("zero_stage-3_precision-bf1", "no run named zero_stage-3_precision-bf1", '"zero_stage-3_precision-bf16"?'),
        ("lr-*", "no run matches lr-* in sweep", "`campaign status sweep` lists them"),
    ],
)
def test_a_name_that_no_run_has_is_a_mistake_and_gets_a_guess(pattern: str, error: str, hint: str) -> None:
    with pytest.raises(UserError) as raised:
        Selection([RunState.FAILED], ["zero*", pattern]).of(RUNS, "sweep")
    assert error in raised.value.message
    assert hint in (raised.value.hint or "")
