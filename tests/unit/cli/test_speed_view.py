"""What is shown of an attempt's speed."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.records import EventRow
from dscampaign.orchestrator.campaign.documents import speed_document
from dscampaign.orchestrator.pages.describe import speed_line

SAID: dict[str, Any] = {
    "steps": 80,
    "warm_up_steps": 20,
    "warm_up_s": 14.21,
    "step_time_median_s": 0.0205,
    "step_time_iqr_s": 0.0003,
    "tokens_per_s": 1_600_000.0,
    "tokens_per_s_per_gpu": 400_000.0,
    "mfu": 0.348,
    "data_wait_share": 0.0001,
    "alloc_retries": 0,
    "device": "NVIDIA H100 80GB HBM3",
}


def events(*said: dict[str, Any], kind: str = "script.speed") -> list[EventRow]:
    return [EventRow(place, 1, 1, 7, 10.0, kind, "", data) for place, data in enumerate(said)]


def test_a_line_says_what_was_measured_and_what_was_left_out() -> None:
    measured = "1.6M tokens/s, MFU 34.8%, 20.5 ms a step (IQR 0.3) over 80 steps"
    assert speed_line(events(SAID), 7) == measured


@pytest.mark.parametrize("said", [{}, {"tokens_per_s": "many"}, {"tokens_per_s": float("nan")}, {"steps": 3}])
def test_a_script_may_say_anything_of_its_speed(said: dict[str, Any]) -> None:
    assert speed_document(events(said), 7) is None
    assert speed_line(events({**said, "tokens_per_s": 5, "mfu": [1], "steps": None}), 7).startswith("5 tokens/s")
