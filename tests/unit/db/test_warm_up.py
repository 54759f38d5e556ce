"""Steps that count in no figure of speed."""

from typing import Any

import pytest

from dscampaign.db.records import untimed_steps, warm_up_steps


@pytest.mark.parametrize(("made", "left_out"), [(1, 1), (2, 1), (3, 1), (30, 15), (40, 20), (1000, 20)])
def test_a_short_attempt_warms_up_for_half_of_its_steps_but_for_one_at_least(made: int, left_out: int) -> None:
    assert warm_up_steps(20, made) == left_out


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({"train": {"untimed_steps": 5}}, 5),
        ({"train": {}}, 20),
        ({"train": None}, 20),
        ({}, 20),
        ({"train": {"untimed_steps": "x"}}, 20),
    ],
)
def test_a_configuration_of_an_older_version_leaves_out_twenty(config: dict[str, Any], steps: int) -> None:
    assert untimed_steps(config) == steps
