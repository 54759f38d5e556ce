"""What this machine has. For `executor: local` only: on a cluster the nodes have their own."""

from __future__ import annotations

import functools
import os


@functools.cache
def local_gpus() -> int:
    """NVIDIA GPUs that a process started here may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    import pynvml  # imported here: only a local campaign asks

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return 0
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()
