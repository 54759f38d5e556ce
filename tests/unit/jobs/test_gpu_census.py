"""What the driver shows of a node's GPUs, also where it knows only a part of the answers."""

from __future__ import annotations

import sys

import pytest

from dscampaign.jobs.probe.examine import census
from dscampaign.jobs.shared.nvml import GpuMeter
from dscampaign.tests.support.fake_gpus import FakeGpus, NVMLError


class Driver(FakeGpus):
    """GPUs with 18 NVLinks, one of which is down."""

    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 36, 1

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.124.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetNvLinkState(self, _gpu: int, link: int) -> int:  # noqa: N802
        if link >= 18:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(link != 3)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    fake = Driver(8)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpus_and_their_links(driver: Driver) -> None:
    found = census([], 3)
    assert (found.driver, found.cuda, found.troubles) == ("570.124.06", "12.8", ())
    assert [gpu.number for gpu in found.devices] == [0, 1, 2]
    gpu = found.devices[0]
    assert (gpu.name, gpu.ecc_errors, gpu.nvlinks, gpu.used_gb) == ("NVIDIA H200", 0, 17, 40.0)
    assert gpu.total_gb == pytest.approx(150.75, abs=0.01)
    assert len(census(["2", "GPU-5"], 2).devices) == 2


@pytest.mark.parametrize(
    ("instant", "average", "seen"),
    [(529_400, None, {"power_w": 529.4}), (None, 500_100, {"power_avg_w": 500.1}), (None, None, {"power_w": 123.0})],
)
def test_a_driver_may_know_one_power_only(
    driver: Driver, instant: int | None, average: int | None, seen: dict[str, float]
) -> None:
    driver.gpus[0] |= {"instant_mw": instant, "average_mw": average}
    found = GpuMeter(driver, 0, 0).read()
    assert {name: value for name, value in found.items() if name.startswith("power")} == seen
