"""Memory of this rank: of the GPU, or of the process without a GPU. GB are 10^9 bytes.

If a rank on CPUs has a limit on its address space, the limit counts: an allocation beyond it fails.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from dscampaign.jobs import report

from .config import Job, TrainerConfig

GB = 1e9


class Peak(NamedTuple):
    """The most that this rank's memory has held since the last reset, in GB; without a GPU twice the resident set.

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


def restart_peak(device: torch.device) -> bool:
    """Forget the peak so far; return whether it is forgotten: the peak of a process without a GPU stays."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    return device.type == "cuda"


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


def report_usable(config: TrainerConfig, job: Job, device: torch.device) -> None:
    """Report event ``memory`` before the first step: the smallest usable memory of all ranks, which all call it."""
    dist.all_reduce(torch.zeros(1, device=device))  # the first collective allocates what communication needs
    own_gb = usable_gb(device, job.gpu_mem_bytes)
    least = torch.tensor(torch.inf if own_gb is None else own_gb, device=device)
    dist.all_reduce(least, dist.ReduceOp.MIN)
    known = {"usable_gb": float(least)} if torch.isfinite(least) else {}
    report.event("memory", micro_batch=config.micro_batch, **known, **place(device))


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
