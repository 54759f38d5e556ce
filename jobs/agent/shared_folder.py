"""The shared folder at an attempt's end, full or away: what the ranks have done is worth waiting for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from io import FileIO
from math import inf
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.regular_files import concerns_one_file, open_regular

from . import evidence
from .evidence import LogLine, NodeOutcome

FOLDER_WAIT_S = 1800.0
"""For a folder that is away: the nodes cost less meanwhile than the attempt has cost."""

OWN_WAIT_S = 60.0
"""For what alone is missing, while the campaign's folder is there."""

ENDED_WAIT_S = 60.0
"""After the agent was told to end: Slurm kills it sooner, but without Slurm nobody does."""

POLL_S = 0.5

RESERVE_BYTES = 128 * 1024
LINES_KEPT = 40
"""Lines of the logs that an outcome on a full disk holds."""


class SharedFolder:
    """An agent's patience with the shared folder.

    Args:
        marker: the campaign's, which is missing where the whole folder is away.
    """

    def __init__(self, marker: Path) -> None:
        self._marker, self._told_s = marker, inf
        self._held: tuple[Path, int, FileIO] | None = None

    def hold(self, claim: Path) -> None:
        """Remember the claim that this agent made by its inode, which an open file keeps from being given again."""
        with contextlib.suppress(OSError):
            file = open_regular(claim)
            self._held = claim, os.fstat(file.fileno()).st_ino, file

    def is_restored(self) -> bool:
        """Return whether the folder is here but not the claim that this agent made: somebody restored an earlier state.

        The device is not compared: a file system that was mounted again has another one.
        """
        if self._held is None:
            return False
        claim, inode, _ = self._held
        try:
            return claim.stat().st_ino != inode
        except FileNotFoundError:
            return self._marker.exists()
        except OSError:
            return False

    def hurry(self) -> None:
        """The agent was told to end: from now on it waits for ``ENDED_WAIT_S`` at most."""
        self._told_s = min(self._told_s, time.monotonic())

    def wait_for(self, done: Callable[[], bool], what: str, *, own: bool = False) -> bool:
        """Tries until it is done, for ``FOLDER_WAIT_S`` at most; returns whether it is.

        Args:
            done: what to try; an OSError counts as not done.
            what: what is wrong while it is not, for the log.
            own: whether it may be missing alone: then, as where the campaign's folder is there and the error is not
                the file system's, the wait is ``OWN_WAIT_S``.
        """
        begun_s, said = time.monotonic(), False
        while True:
            trouble = None
            try:
                if done():
                    return True
            except OSError as exc:
                what, trouble = str(exc), exc
            patience_s = OWN_WAIT_S if own or self._alone(trouble) else FOLDER_WAIT_S
            if time.monotonic() >= min(begun_s + patience_s, self._told_s + ENDED_WAIT_S):
                break
            if not said:
                print(f"waiting for the shared folder: {what}", file=sys.stderr, flush=True)
                said = True
            time.sleep(POLL_S)
        print(f"gave up waiting: {what}", file=sys.stderr, flush=True)
        return False

    def _alone(self, trouble: OSError | None) -> bool:
        """Whether a single file or folder is the trouble: the campaign's folder is there."""
        single = trouble is None or isinstance(trouble, FileNotFoundError) or concerns_one_file(trouble)
        return single and self._marker.exists()


def keep_room(reserve: Path) -> None:
    """Takes room for the outcome, should the disk fill up meanwhile."""
    with contextlib.suppress(OSError):  # no room at all: the ranks will say so themselves
        write_atomically(reserve, " " * RESERVE_BYTES)


def leave(outcome: NodeOutcome, path: Path, reserve: Path) -> bool:
    """Writes the outcome and frees the reserve; on a full disk it takes the reserve's room, with that as its proof.

    Returns:
        True, as `SharedFolder.wait_for` asks.

    Raises:
        OSError: it cannot be written there either.
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
