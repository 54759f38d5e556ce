"""Memory of this rank: of the GPU, or of the process without a GPU. GB are 10^9 bytes.

If a rank on CPUs has a limit on its address space, the limit counts: an allocation beyond it fails.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import torch

GB = 1e9


@dataclass(frozen=True)
class Peak:
    """The most that this rank's memory has held so far, in GB; without a GPU both are the peak resident set.

    `retries`: how often the allocator had to give everything back and ask again, which costs much time.
    """

    allocated_gb: float
    reserved_gb: float
    retries: int = 0


def peak(device: torch.device) -> Peak:
    """The peak so far."""
    if device.type == "cuda":
        stats = torch.cuda.memory_stats_as_nested_dict(device)  # once: it is asked at every step
        allocated, reserved = (stats[name]["all"]["peak"] / GB for name in ("allocated_bytes", "reserved_bytes"))
        return Peak(allocated, reserved, stats["num_alloc_retries"])
    resident_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB
    return Peak(resident_gb, resident_gb)


class Peaks:
    """The peaks of this rank's memory: of the whole attempt, and without its warm-up."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = Peak(0.0, 0.0)
        self._apart = False

    def restart(self) -> None:
        """Start the window after the warm-up. A process without a GPU cannot separate the two peaks."""
        if self._device.type == "cuda":
            self._before, self._apart = peak(self._device), True
            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> tuple[Peak, Peak]:
        """Return the peaks of the whole attempt and since the warm-up; zeros for unknown values."""
        now, before = peak(self._device), self._before
        whole = Peak(max(now.allocated_gb, before.allocated_gb), max(now.reserved_gb, before.reserved_gb), now.retries)
        return whole, now if self._apart else Peak(0.0, 0.0)


def limited_peak_gb(device: torch.device) -> float | None:
    """Return the peak of the address space in GB if it is limited, else None."""
    return _status_gb("VmPeak") if device.type != "cuda" and _address_limit() else None


def current_gb(device: torch.device) -> float:
    """Return the memory in use, in GB: of tensors, or without a GPU of the process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / GB
    return _status_gb("VmSize" if _address_limit() else "VmRSS")


def usable_gb(device: torch.device, limit_bytes: int | None) -> float | None:
    """Return this rank's usable memory in GB, without the share of other processes; None without a limit."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        room = free + torch.cuda.memory_reserved(device)
        return min(room, limit_bytes or room) / GB
    limit = _address_limit()
    return limit / GB if limit else None


def place(device: torch.device) -> dict[str, str]:
    """The device and the version of PyTorch, on both of which memory depends."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "torch": torch.__version__}


def _address_limit() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def _status_gb(name: str) -> float:
    """A size in the process's status, which Linux gives in KiB. Peaks are only there: psutil knows none."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024 / GB
