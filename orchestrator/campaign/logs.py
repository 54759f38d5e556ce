"""The log to show: of a rank, of the launcher, or of the batch job as long as there is no other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.states import UNSETTLED_RUN
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.orchestrator.errors import UserError

POLL_S = 0.5
_BLOCK = 1 << 16


class LogStream(Protocol):
    """A stream of bytes, or a terminal's stand-in."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""

    def flush(self) -> None:
        """Show all of them."""


@dataclass(frozen=True)
class Wanted:
    """Which output to show."""

    attempt: AttemptPaths
    batch: Path
    job_logs: tuple[str, ...]  # glob patterns of the batch job's own logs, from before the launcher started
    rank: int  # of the launcher, the number of its node
    launcher: bool
    over: bool  # whether the attempt has ended by the store

    @classmethod
    def of(
        cls, store: Store, campaign: CampaignRow, run: RunRow, *, rank: int, launcher: bool, generation: int | None
    ) -> Wanted:
        """Find the attempt, by default the newest; raises UserError if the run lacks this attempt or rank."""
        with store.read() as conn:
            rows = queries.attempts(conn, campaign.id, run.id)
        row = next((row for row in reversed(rows) if generation in (None, row.generation)), None)
        if row is None:
            have = ", ".join(str(row.generation) for row in rows)
            message = f"{run.name} has no attempt {generation}" if generation else f"{run.name} has no log"
            raise UserError(message, f"it has {have}" if rows else "it has not been submitted yet")
        noun, number = ("node", row.nodes) if launcher else ("rank", row.world_size)
        if rank >= number:
            has = f"{noun}s 0 to {number - 1}" if number > 1 else f"{noun} 0 alone"
            raise UserError(f"{run.name} has no {noun} {rank}", f"it has {has}")
        paths = CampaignPaths(Path(campaign.dir), campaign.name)
        job = f"{row.job_id}_*_log" if row.task is None else f"{row.job_id}_run{row.array_index}_log"
        return cls(
            attempt=paths.run(run.name).attempt(row.generation),
            batch=paths.batch(row.token),
            job_logs=(f"{job}.err", f"{job}.out", f"{row.array_index or 0}.log"),
            rank=rank,
            launcher=launcher,
            over=row.ended_s is not None,
        )

    @property
    def ended(self) -> bool:
        """Whether nothing more will be written."""
        return self.over or self.attempt.outcome(0).exists()


def newest_log(wanted: Wanted) -> Path:
    """Return the rank's log, else the launcher's or the batch job's; raises UserError if there is none."""
    if log := next(_candidates(wanted), None):
        return log
    hint = "it has not started yet; wait for it with -f, or see another --attempt"
    noun = "launcher" if wanted.launcher else "rank"
    message = f"no log of {noun} {wanted.rank} in {wanted.attempt.dir.name}"
    raise UserError(message, "it never began to write" if wanted.ended else hint)


def await_attempt(
    store: Store, campaign: CampaignRow, run: RunRow, say: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Wait while the run has no active attempt but will get one; call `say` once with the reason."""
    waiting = ""
    while True:
        with store.read() as conn:
            now = queries.run_by_name(conn, campaign.id, run.name)
            rows = queries.attempts(conn, campaign.id, run.id)
        if now is None or now.state not in UNSETTLED_RUN or (rows and rows[-1].ended_s is None):
            return
        if not waiting:
            say(waiting := f"{run.name} is {now.state}; waiting for attempt {now.generation + 1}")
        sleep(POLL_S)


def print_log(path: Path, lines: int | None, out: LogStream, offset: int = 0) -> int:
    """Copy a log from an offset, or its last lines; return the offset of its end."""
    with path.open("rb") as log:
        log.seek(offset)
        for block in iter(lambda: log.read(_BLOCK), b"") if lines is None else deque(log, lines):
            out.write(block)
        out.flush()
        return log.tell()


def follow_log(
    wanted: Wanted, lines: int | None, out: LogStream, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Copy a log as it grows until the attempt ends; raises UserError if it ends without a log."""
    path: Path | None = None
    offset = 0
    while True:
        ended = wanted.ended  # asked before the copy: what was written before the end is copied after it
        current = next(_candidates(wanted), None)
        if current is not None and current != path:
            path, offset = current, print_log(current, lines, out)
        elif path is not None:
            offset = print_log(path, None, out, offset)
        if ended:
            newest_log(wanted)
            return
        sleep(POLL_S)


def _candidates(wanted: Wanted) -> Iterator[Path]:
    if not wanted.launcher:
        ranks = sorted(wanted.attempt.logs.glob(f"*_rank{wanted.rank}.log"), reverse=True)
        yield from (path for path in ranks if path.stat().st_size)
    if wanted.launcher or wanted.rank == 0:
        launcher = wanted.attempt.launcher_log(wanted.rank if wanted.launcher else 0)
        if launcher.exists():
            yield launcher
        for pattern in wanted.job_logs:
            yield from (path for path in sorted(wanted.batch.glob(pattern)) if path.stat().st_size)
