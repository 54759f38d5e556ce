"""What this machine has. For `executor: local` only: on a cluster the nodes have their own."""

from __future__ import annotations

import functools
import os

from ...jobs.shared.nvml import Unavailable, listed, session


@functools.cache
def local_gpus() -> int:
    """NVIDIA GPUs that a process started here may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in listed(visible) if device != "-1"])
    try:
        with session() as nvml:
            return int(nvml.nvmlDeviceGetCount())
    except Unavailable:
        return 0
