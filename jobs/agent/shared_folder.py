"""Wait for the shared folder at an attempt's end, if it is full or away: the ranks' work is worth it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import concerns_one_file

from . import evidence
from .evidence import LogLine, NodeOutcome

FOLDER_WAIT_S = 1800.0  # for a folder that is away: the nodes cost less meanwhile than the attempt has cost
OWN_WAIT_S = 60.0  # for a missing file or folder, while the campaign's folder is there
ENDED_WAIT_S = 60.0  # after SIGTERM: Slurm kills the agent sooner, but without Slurm nobody does
POLL_S = 0.5

RESERVE_BYTES = 128 * 1024
LINES_KEPT = 40  # lines of the logs that an outcome on a full disk holds


class SharedFolder:
    """An agent's patience with the shared folder."""

    def __init__(self, marker: Path) -> None:
        self._marker, self._hurried_s = marker, inf

    def hurry(self) -> None:
        """Wait for ``ENDED_WAIT_S`` at most from now on."""
        self._hurried_s = min(self._hurried_s, time.monotonic())

    def wait_for(self, done: Callable[[], bool], subject: str, *, own: bool = False) -> bool:
        """Try until it is done, for ``FOLDER_WAIT_S`` at most; return whether it is.

        `own`: it may be missing alone: then, or if the campaign's folder is there and the error is not the file
        system's, the wait is ``OWN_WAIT_S``.
        """
        begun_s, printed = time.monotonic(), False
        while True:
            trouble = None
            try:
                if done():
                    return True
            except OSError as exc:
                subject, trouble = str(exc), exc
            single = trouble is None or isinstance(trouble, FileNotFoundError) or concerns_one_file(trouble)
            patience_s = OWN_WAIT_S if own or (single and self._marker.exists()) else FOLDER_WAIT_S
            if time.monotonic() >= min(begun_s + patience_s, self._hurried_s + ENDED_WAIT_S):
                break
            if not printed:
                print(f"waiting for the shared folder: {subject}", file=sys.stderr, flush=True)
                printed = True
            time.sleep(POLL_S)
        print(f"gave up waiting: {subject}", file=sys.stderr, flush=True)
        return False


def keep_room(reserve: Path) -> None:
    """Reserve room for the outcome, in case the disk fills up meanwhile."""
    with contextlib.suppress(OSError):  # no room at all: the ranks will say so themselves
        write_atomically(reserve, " " * RESERVE_BYTES)


def leave(outcome: NodeOutcome, path: Path, reserve: Path) -> bool:
    """Write the outcome and free the reserve; on a full disk take the reserve's room, and record that as proof.

    Return True, as `SharedFolder.wait_for` asks. Raises OSError: it cannot be written there either.
    """
    try:
        outcome.write(path)
    except OSError as exc:
        proof = LogLine(evidence.AGENT, 0, f"OSError: {exc}")
        reserve.unlink(missing_ok=True)
        replace(outcome, lines=(proof, *outcome.lines[-LINES_KEPT:])).write(path)
    with contextlib.suppress(OSError):
        reserve.unlink(missing_ok=True)
    return True
