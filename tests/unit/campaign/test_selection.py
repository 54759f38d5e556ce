"""Which runs a user means, and what is said where there are none."""

from typing import Any, NamedTuple

import pytest

from dscampaign.db.states import RunState
from dscampaign.orchestrator.campaign.selection import Selection


class Named(NamedTuple):
    """A run, as far as it is selected by."""

    name: str
    state: RunState


RUNS: list[Any] = [
    Named("zero_stage-2_precision-bf16", RunState.COMPLETED),
    Named("zero_stage-3_precision-bf16", RunState.FAILED),
    Named("zero_stage-3_precision-fp16", RunState.QUEUED),
]


@pytest.mark.parametrize(
    ("states", "names", "places"),
    [
        ([], [], [0, 1, 2]),
        ([RunState.FAILED, RunState.QUEUED], [], [1, 2]),
        ([], [RUNS[0].name, RUNS[2].name], [0, 2]),
        ([RunState.FAILED], [RUNS[0].name, RUNS[1].name], [1]),
        ([RunState.HELD], [RUNS[0].name], []),
    ],
)
def test_runs_are_chosen_by_state_and_by_name(states: list[RunState], names: list[str], places: list[int]) -> None:
    assert Selection(states, names).of(RUNS) == [RUNS[place] for place in places]
