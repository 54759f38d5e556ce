"""The learning rate by step."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.jobs.trainer.train import learning_rate
from dscampaign.tests.integration.trainer.attempts import train_config


def rates(steps: int, **changes: Any) -> list[float]:
    config = train_config(**{"lr": 1.0, "warmup_steps": 0, "min_lr_ratio": 0.0, **changes})
    return [learning_rate(config, step, steps) for step in range(1, steps + 1)]


def test_warmup_ends_at_the_full_rate() -> None:
    assert rates(6, schedule="constant", warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_is_half_way_in_the_middle() -> None:
    found = rates(10, schedule="cosine")
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.5)
    assert found == sorted(found, reverse=True)


def test_floor() -> None:
    assert rates(4, schedule="linear", min_lr_ratio=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4])
