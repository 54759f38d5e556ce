"""Ranks of one node without the `deepspeed` launcher, which costs as much to start as they do.

They are forked from a process that has imported what they need, for that takes longer than most of what they train.
That the launcher starts them, in interpreters of their own, is tested with whole attempts, in tests/integration/local
and tests/faults.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path
from typing import Final, cast

import pytest

from dscampaign.jobs import report

POLL_S: Final = 0.02
GRACE_S: Final = 10.0
"""What the others have left to say once one has failed; the launcher gives them longer."""

ON_CPU: Final = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
"""What is read when DeepSpeed and OpenMP are loaded."""


class Ranks:
    """Processes that form one group; all are ended soon after one fails, as by the launcher."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str], count: int, port: int) -> None:
        """Starts `count` ranks, each with these arguments of Python; the first one listens at `port`."""
        self._failed_s = 0.0
        self._output = tempfile.NamedTemporaryFile("r")  # noqa: SIM115
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        whole = {**os.environ, **ON_CPU, **env, **place, "LOCAL_SIZE": str(count)}
        self._processes = [
            _started(arguments, {**whole, "RANK": str(rank), "LOCAL_RANK": str(rank)}, self._output.name)
            for rank in range(count)
        ]

    def poll(self) -> int | None:
        """The exit code of the first one that failed, 0 if none did, None while they run."""
        codes = [process.exitcode for process in self._processes]
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
            process.join()


def _started(arguments: tuple[str, ...], environment: dict[str, str], output: str) -> ForkServerProcess:
    process = _server().Process(target=_run, args=(arguments, environment, output))
    process.start()
    return process


@cache
def _server() -> ForkServerContext:
    """The process that all ranks of this one are forked from."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["dscampaign.tests.integration.trainer.imported"])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ON_CPU.items():
            patch.setenv(name, value)
        ensure_running()
    return server


def _run(arguments: tuple[str, ...], environment: dict[str, str], output: str) -> None:
    """What `python ARGUMENTS` would do, with this environment, its output added to a file."""
    os.environ.clear()
    os.environ.update(environment)
    _write_to(output)
    importlib.reload(report)  # it has read the environment
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _write_to(output: str) -> None:
    """At once, for a rank may be killed."""
    file = os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
        cast(io.TextIOWrapper, stream).reconfigure(write_through=True)
    os.close(file)
