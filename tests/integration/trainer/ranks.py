"""Ranks of one node without the `deepspeed` launcher, which costs as much to start as they do.

That the launcher starts them is tested with whole attempts, in tests/integration/local and tests/faults.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Final

POLL_S: Final = 0.02
GRACE_S: Final = 10.0
"""What the others have left to say once one has failed; the launcher gives them longer."""


class Ranks:
    """Processes that form one group; all are ended soon after one fails, as by the launcher."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str], count: int, port: int) -> None:
        """Starts them.

        Args:
            arguments: of Python, for each rank.
            env: laid over this process's environment.
            count: how many.
            port: where the first one listens.
        """
        self._failed_s = 0.0
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **env, **place, "LOCAL_SIZE": str(count)}
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-u", *arguments],
                env={**whole, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=self._output,
                stderr=subprocess.STDOUT,
            )
            for rank in range(count)
        ]

    def poll(self) -> int | None:
        """The exit code of the first one that failed, 0 if none did, None while they run."""
        codes = [process.poll() for process in self._processes]
        if failed := next((code for code in codes if code), 0):
            self._failed_s = self._failed_s or time.monotonic()
            if None in codes and time.monotonic() - self._failed_s < GRACE_S:
                return None
            self.kill()
            return failed
        return None if None in codes else 0

    def finish(self) -> tuple[int, str]:
        """Waits for their end; the exit code as above, and all that they have printed."""
        while (code := self.poll()) is None:
            time.sleep(POLL_S)
        self._output.seek(0)
        return code, self._output.read()

    def kill(self) -> None:
        """Ends those that still run."""
        for process in self._processes:
            process.kill()
            process.wait()
