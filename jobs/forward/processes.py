"""The agent's side: one process a tool, which never holds up the training."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import signal_group

from .tool import tell_unfinished

FINISH_S = 15.0  # a tool may take lines for this long after the ranks: less than Slurm lets a cancelled job live
REAP_S = 1.0
LIVE = "--live"  # follow the attempt until its agent closes the standard input
FINISHED = "finished"  # the end of an attempt whose script came to its end


class Forwarders:
    """The processes that forward an attempt's metrics from its first node, for each tool that the spec names."""

    def __init__(self, paths: AttemptPaths) -> None:
        self._paths = paths
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended_s = 0.0

    def start(self, payload: Payload) -> None:
        """Start them, for the attempt as it really runs. If they cannot start, the training goes on."""
        try:
            if payload.forward:
                payload.write(self._paths.forward_payload)
            for tool in payload.forward:
                with open(self._paths.forward_log(tool), "ab", opener=open_private) as log:
                    self._processes[tool] = subprocess.Popen(
                        [sys.executable, "-P", "-u", "-m", "dscampaign.jobs.forward", str(self._paths.dir), tool, LIVE],
                        env={**os.environ, **payload.env},
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        bufsize=0,
                        start_new_session=True,
                    )
        except OSError as exc:
            print(f"metrics are not forwarded: {exc}", file=sys.stderr, flush=True)

    def end(self, exit_code: int | None, ended_by: str) -> None:
        """Pass on how the ranks ended, without waiting."""
        self._ended_s = time.monotonic()
        for process in self._processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended before
                process.stdin.write(f"{how_it_ended(exit_code, ended_by)}\n".encode())
            process.stdin.close()

    def wait(self) -> None:
        """Wait a limited time until they have forwarded the rest; lines that are left stay in the spool."""
        for tool, process in self._processes.items():
            try:
                code = process.wait(max(0.0, self._ended_s + FINISH_S - time.monotonic()))
            except subprocess.TimeoutExpired:
                tell_unfinished(self._paths, tool, f"did not take everything within {FINISH_S:g} s of the end")
                code = 0
            signal_group(process.pid)  # and helpers that a tool left behind
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in a file system outlives SIGKILL
                process.wait(REAP_S)
            if code:
                log = self._paths.forward_log(tool)
                tell_unfinished(self._paths, tool, f"its process ended with {code}, see {log}")


def how_it_ended(exit_code: int | None, ended_by: str) -> str:
    """Return an attempt's end: ``FINISHED``, why its agent ended it, or "failed"."""
    return ended_by or (FINISHED if exit_code == 0 else "failed")
