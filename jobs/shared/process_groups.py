"""Processes that were started as a group of their own, ended as one."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress


def signal_group(group: int, signum: int = signal.SIGKILL) -> None:
    """Sends a signal to all processes of a group that are still there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def terminate_group(leader: subprocess.Popen[bytes], grace_s: float) -> None:
    """Asks a group to end, and kills it if its leader has not ended after so long."""
    signal_group(leader.pid, signal.SIGTERM)
    try:
        leader.wait(grace_s)
    except subprocess.TimeoutExpired:
        signal_group(leader.pid)
