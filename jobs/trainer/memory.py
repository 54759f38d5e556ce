"""Memory of this rank: the GPU's, or the process's where there is none. GB are 10^9 bytes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

GB = 1e9


def peak_gb(device: torch.device) -> tuple[float, float]:
    """Peak (allocated, reserved) so far, in GB; without a GPU both are the peak resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / GB, torch.cuda.max_memory_reserved(device) / GB
    resident_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB
    return resident_gb, resident_gb


def current_gb(device: torch.device) -> float:
    """Reserved now, in GB; without a GPU the resident set."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device) / GB
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GB


def total_gb(device: torch.device) -> float:
    """What the device has, in GB; without a GPU the machine's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GB
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GB
