"""What the driver shows of a node's GPUs, also where it knows only a part of the answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from dscampaign.jobs.probe import gpu_census
from dscampaign.jobs.probe.gpu_census import census
from dscampaign.jobs.shared import nvml
from dscampaign.tests.support.fake_gpus import FakeGpus, NVMLError


class Driver(FakeGpus):
    """GPUs with 18 NVLinks, one of which is down."""

    NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = 36, 1

    def __init__(self, count: int = 2, *, older: bool = False) -> None:
        super().__init__(count)
        self.older = older

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.124.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 12080

    def nvmlDeviceGetNvLinkState(self, _gpu: int, link: int) -> int:  # noqa: N802
        if link >= 18:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return int(link != 3)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        answers: dict[str, Any] = {
            "nvmlDeviceGetRemappedRows": (0, 0, 1, 0),
        }
        if name in answers and not self.__dict__.get("older"):
            return lambda gpu: (self._called(name, gpu), answers[name])[1]
        return super().__getattr__(name)


def test_gpus_and_their_links() -> None:
    found = census(Driver(3), [], 3)
    assert (found.driver, found.cuda, found.troubles) == ("570.124.06", "12.8", ())
    gpu = found.devices[0]
    assert (gpu.name, gpu.ecc_errors, gpu.remap, gpu.nvlinks) == ("NVIDIA H200", 0, "pending", 17)
    assert gpu.total_gb == pytest.approx(150.75, abs=0.01)
    assert gpu.used_gb == 40.0


def test_only_the_job_s_own_gpus_count() -> None:
    assert len(census(Driver(8), ["2", "GPU-5"], 2).devices) == 2
    assert len(census(Driver(8), [], 2).devices) == 2


def test_a_gpu_that_does_not_answer_is_told_and_the_others_are_shown() -> None:
    driver = Driver(2)
    driver.fail("nvmlDeviceGetHandleByIndex", 1, driver.NVML_ERROR_GPU_IS_LOST)
    found = census(driver, [], 2)
    assert [gpu.number for gpu in found.devices] == [0]
    assert found.troubles == ("GPU 1: error 15",)


def test_what_an_older_library_or_gpu_does_not_know_is_left_out() -> None:
    driver = Driver(2, older=True)
    driver.fail("nvmlDeviceGetTotalEccErrors", 0, driver.NVML_ERROR_NOT_SUPPORTED)
    gpu = census(driver, [], 2).devices[0]
    assert (gpu.name, gpu.ecc_errors, gpu.remap) == ("NVIDIA H200", None, "")


def test_a_driver_that_does_not_answer_at_all() -> None:
    driver = Driver()
    driver.fail("nvmlInit", -1, 9)
    with pytest.raises(NVMLError):
        census(driver, [], 2)


def test_the_real_library_has_all_that_is_asked_of_it() -> None:
    sources = "".join(inspect.getsource(module) for module in (gpu_census, nvml))
    named = set(re.findall(r"\bnvml\.([nN]\w+)", sources))
    assert len(named) > 15
    assert [name for name in sorted(named) if not hasattr(pynvml, name)] == []
