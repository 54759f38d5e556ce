"""What is read of one GPU, and what is left out."""

from __future__ import annotations

import pytest

from dscampaign.jobs.shared.nvml import GpuMeter
from dscampaign.tests.support.fake_gpus import FakeGpus


@pytest.fixture
def nvml() -> FakeGpus:
    return FakeGpus()


@pytest.mark.parametrize(
    ("instant", "average", "seen"),
    [
        (529_400, None, {"power_w": 529.4}),
        (None, 500_100, {"power_avg_w": 500.1}),
        (None, None, {"power_w": 123.0}),
    ],
)
def test_a_driver_may_know_one_power_only(
    nvml: FakeGpus, instant: int | None, average: int | None, seen: dict[str, float]
) -> None:
    nvml.gpus[0] |= {"instant_mw": instant, "average_mw": average}
    found = GpuMeter(nvml, 0, 0).read()
    assert {name: value for name, value in found.items() if name.startswith("power")} == seen
