"""The log to show: of a rank, of the launcher, or of the batch job as long as there is no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...db import queries
from ...db.records import UNSETTLED_RUN, CampaignRow, RunRow
from ...db.store import Store
from ...jobs.shared.layout import AttemptPaths, CampaignPaths
from ..errors import UserError

POLL_S = 0.5
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Wanted:
    """Which output to show.

    Attributes:
        rank: number of the rank; of the node for the launcher.
        job_logs: glob patterns of the batch job's own logs, from before the launcher started.
        over: whether the attempt has ended, according to the store.
    """

    attempt: AttemptPaths
    batch: Path
    job_logs: tuple[str, ...]
    rank: int
    launcher: bool
    over: bool

    @classmethod
    def of(
        cls, store: Store, campaign: CampaignRow, run: RunRow, *, rank: int, launcher: bool, generation: int | None
    ) -> Wanted:
        """Finds the attempt, by default the newest.

        Raises:
            UserError: the run has no such attempt or rank.
        """
        with store.read() as conn:
            rows = queries.attempts(conn, campaign.id, run.id)
        row = next((row for row in reversed(rows) if generation in (None, row.generation)), None)
        if row is None:
            have = (
                f"it has {', '.join(str(row.generation) for row in rows)}" if rows else "it has not been submitted yet"
            )
            raise UserError(f"{run.name} has no attempt {generation}" if generation else f"{run.name} has no log", have)
        _check_number(run, rank, "node" if launcher else "rank", row.nodes if launcher else row.world_size)
        paths = CampaignPaths(Path(campaign.dir), campaign.name)
        return cls(
            attempt=paths.run(run.name).attempt(row.generation),
            batch=paths.batch(row.token),
            job_logs=(f"{row.job_id}_*_log.err", f"{row.job_id}_*_log.out", f"{row.array_index or 0}.log"),
            rank=rank,
            launcher=launcher,
            over=row.ended_s is not None,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more will be written."""
        return self.over or self.attempt.outcome(0).exists()


def _check_number(run: RunRow, number: int, what: str, count: int) -> None:
    if number >= count:
        has = f"{what}s 0 to {count - 1}" if count > 1 else f"{what} 0 alone"
        raise UserError(f"{run.name} has no {what} {number}", f"it has {has}")


def newest_log(wanted: Wanted) -> Path:
    """The log to show: the rank's if there is one yet, then the launcher's, then the batch job's.

    Raises:
        UserError: there is none.
    """
    found = next(_candidates(wanted), None)
    if found is None:
        hint = "it has not started yet; -f waits for it" if not wanted.ended else f"see {wanted.attempt.logs}"
        what = "launcher" if wanted.launcher else "rank"
        raise UserError(f"no log of {what} {wanted.rank} in {wanted.attempt.dir.name}", hint)
    return found


def await_attempt(
    store: Store, campaign: CampaignRow, run: RunRow, say: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Waits while the run has no active attempt but will get one.

    Args:
        store: where its attempts are.
        campaign: the run's campaign.
        run: the run.
        say: called once with what is waited for.
        sleep: waits for so many seconds.
    """
    said = False
    while True:
        with store.read() as conn:
            now = queries.run_by_name(conn, campaign.id, run.name)
            rows = queries.attempts(conn, campaign.id, run.id)
        if now is None or now.state not in UNSETTLED_RUN or (rows and rows[-1].ended_s is None):
            return
        if not said:
            say(f"{run.name} is {now.state}; waiting for attempt {now.generation + 1}")
            said = True
        sleep(POLL_S)


def print_log(path: Path, lines: int | None, out: BinaryIO) -> int:
    """Copies a log, or its last lines; returns how many bytes of it that were."""
    with path.open("rb") as log:
        if lines is not None:
            out.writelines(deque(log, lines))
        else:
            while block := log.read(_BLOCK):
                out.write(block)
        out.flush()
        return log.tell()


def follow_log(
    wanted: Wanted, lines: int | None, out: BinaryIO, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Copies a log as it grows until the attempt ends; waits for one that is not there yet.

    Raises:
        UserError: the attempt ended without a log.
    """
    path: Path | None = None
    offset = 0
    while True:
        ended = wanted.ended  # asked before the copy: what was written before the end is copied after it
        current = next(_candidates(wanted), None)
        if current is not None and current != path:
            path, offset = current, print_log(current, lines, out)
        elif path is not None:
            offset = _copy_from(path, offset, out)
        if ended:
            newest_log(wanted)
            return
        sleep(POLL_S)


def _candidates(wanted: Wanted) -> Iterator[Path]:
    """The existing logs, best first. Names of ranks' logs contain the date, so the last one is the newest."""
    if not wanted.launcher:
        ranks = sorted(wanted.attempt.logs.glob(f"*_rank{wanted.rank}.log"), reverse=True)
        yield from (path for path in ranks if path.stat().st_size)
    if wanted.launcher or wanted.rank == 0:
        launcher = wanted.attempt.launcher_log(wanted.rank if wanted.launcher else 0)
        if launcher.exists():
            yield launcher
        for pattern in wanted.job_logs:
            yield from (path for path in sorted(wanted.batch.glob(pattern)) if path.stat().st_size)


def _copy_from(path: Path, offset: int, out: BinaryIO) -> int:
    with path.open("rb") as log:
        log.seek(offset)
        while block := log.read(_BLOCK):
            out.write(block)
        out.flush()
        return log.tell()
