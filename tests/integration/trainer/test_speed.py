"""The window over which speed is measured."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.db.records import WARM_UP_STEPS
from dscampaign.jobs.trainer.meter import Speed, peak_flops

WORK: dict[str, Any] = {"tokens": 8192, "ranks": 2, "flops_per_token": 1e9, "peak_flops": 1e15}


def test_nothing_is_said_before_the_warm_up_is_over() -> None:
    speed = Speed(**WORK, warm_up=WARM_UP_STEPS)
    for _ in range(WARM_UP_STEPS):
        speed.add(1.0, 0.0)
    assert speed.summary() is None


def test_the_warm_up_is_left_out_and_reported() -> None:
    speed = Speed(**WORK, warm_up=WARM_UP_STEPS)
    for step in range(WARM_UP_STEPS):
        speed.add(10.0 if step == 0 else 1.0, 0.5)
    for time_s in (0.1, 0.2, 0.1, 0.2):
        speed.add(time_s, 0.03)
    summary = speed.summary()
    assert summary is not None
    assert (summary["steps"], summary["warm_up_steps"]) == (4, WARM_UP_STEPS)
    assert summary["warm_up_s"] == pytest.approx(10.0 + WARM_UP_STEPS - 1)
    assert summary["tokens_per_s"] == pytest.approx(4 * 8192 / 0.6)
    assert summary["tokens_per_s_per_gpu"] == pytest.approx(2 * 8192 / 0.6)
    assert summary["mfu"] == pytest.approx(2 * 8192 / 0.6 * 1e9 / 1e15)
    assert summary["step_time_median_s"] == pytest.approx(0.15)
    assert summary["data_wait_share"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA RTX A1000", None),
        ("cpu", None),
    ],
)
def test_the_peak_follows_from_the_device_s_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
