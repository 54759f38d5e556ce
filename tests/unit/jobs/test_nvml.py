"""What is read of one GPU, and what is left out."""

from __future__ import annotations

import pytest

from dscampaign.db.gpu_records import GPU_FIGURES
from dscampaign.jobs.shared.nvml import GpuMeter
from dscampaign.tests.support.fake_gpus import FakeGpus

ALL = {
    "energy_j": 1234.567,
    "power_w": 529.4,
    "power_avg_w": 500.1,
    "util_pct": 93,
    "mem_util_pct": 41,
    "mem_used_gb": 40.0,
    "temperature_c": 64,
    "sm_clock_mhz": 1980,
    "mem_clock_mhz": 3201,
    "throttle": 4,
    "ecc_errors": 0,
}


@pytest.fixture
def nvml() -> FakeGpus:
    return FakeGpus()


def test_every_figure_has_its_unit(nvml: FakeGpus) -> None:
    assert GpuMeter(nvml, 1, 1).read() == ALL
    assert set(ALL) == set(GPU_FIGURES)


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
