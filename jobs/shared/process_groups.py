"""End processes that were started as a group of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Final

_POLL_S: Final = 0.05


def signal_group(group: int, signum: int = signal.SIGKILL) -> None:
    """Send a signal to all processes of a group that are still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def terminate_group(leader: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask a group to end, and kill the rest of it after `grace_s`.

    It waits for all of them, not for the leader alone: `deepspeed` ends at once, and its ranks may save something.
    """
    signal_group(leader.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    with suppress(ProcessLookupError, PermissionError):  # it is gone, or the rest is another user's
        while True:
            if leader.poll() is not None:
                os.killpg(leader.pid, 0)
            if time.monotonic() >= deadline_s:
                signal_group(leader.pid)
                break
            time.sleep(_POLL_S)
