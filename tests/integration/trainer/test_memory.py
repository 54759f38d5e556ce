"""The peaks of a rank's memory, with and without its warm-up."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from dscampaign.jobs.trainer.memory import Peak, Peaks


class Allocator:
    """PyTorch's allocator, as far as it is asked."""

    def __init__(self) -> None:
        self.held, self.peak = 0, 0

    def take(self, number: int) -> None:
        self.held += number
        self.peak = max(self.peak, self.held)

    def stats(self, _device: object) -> dict[str, Any]:
        held = {"all": {"peak": self.peak}}
        return {"allocated_bytes": held, "reserved_bytes": held, "num_alloc_retries": 1}

    def reset(self, _device: object) -> None:
        self.peak = self.held


class Gpu:
    """Stands for a device."""

    type = "cuda"


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found = Allocator()
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", found.stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", found.reset)
    return found


def test_what_only_the_warm_up_took_is_in_the_whole_peak_alone(allocator: Allocator) -> None:
    peaks = Peaks(cast(torch.device, Gpu()))
    allocator.take(9 * 10**9)
    allocator.take(-4 * 10**9)
    assert peaks.read() == (Peak(9.0, 9.0, 1), Peak(0.0, 0.0))
    peaks.restart()
    allocator.take(2 * 10**9)
    allocator.take(-2 * 10**9)
    assert peaks.read() == (Peak(9.0, 9.0, 1), Peak(7.0, 7.0, 1))
    allocator.take(6 * 10**9)
    assert peaks.read() == (Peak(11.0, 11.0, 1), Peak(11.0, 11.0, 1))


def test_a_process_without_a_gpu_has_one_peak() -> None:
    peaks = Peaks(torch.device("cpu"))
    peaks.restart()
    whole, timed = peaks.read()
    assert whole.reserved_gb > 0
    assert timed == Peak(0.0, 0.0)
