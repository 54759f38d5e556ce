"""What DeepSpeed's ranks leave in a node's shared memory.

Its all-reduce for ranks on CPUs keeps 66 MiB of each in files that it never removes (as of 0.19.8): on a node without
GPUs every attempt would take memory until the node starts again.
"""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")  # noqa: S108


def clear(address: str, port: int, memory: Path = MEMORY) -> None:
    """Removes the buffers of this user's ranks that met at ``address`` and ``port``; they have ended."""
    name = glob.escape(f"deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_")
    for left in memory.glob(f"{name}*"):
        with contextlib.suppress(OSError):
            left.unlink()
