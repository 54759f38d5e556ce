"""Read the progress records that a node's ranks keep in its memory (`report.py`), and write the agent's heartbeat."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dscampaign.files import ours
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.guard import ALIVE
from dscampaign.jobs.shared.documents import Document, Time, Whole, decode
from dscampaign.jobs.shared.layout import SHARED_MEMORY

from .evidence import RankEnd

DIR_VARIABLE = "CAMPAIGN_PROGRESS_DIR"
PREFIX = "campaign-ranks-"
PULSE_S = 1.0
HUNG_S = 1800.0
"""An agent that has not looked at its ranks for so long, as in a file system that hangs, gives no sign of life."""

PAUSE_S = 10.0  # seconds between two looks that pass only if the job was suspended: the agent looks twice a second
RECORD_BYTES = 1024  # more than a rank's record has
QUIET_START = "start"


@dataclass(frozen=True)
class RankProgress:
    """How far a rank is: the newest step that it has worked on, 0 before the first, and its phase of `report.phase`."""

    step: Whole
    phase: str


@dataclass(frozen=True)
class Heartbeat(Document):
    """An agent's sign of life, with the progress of its ranks. Older files may lack fields with defaults."""

    ts: Time
    host: str = ""
    # since when no record of any rank here has changed, in seconds; None if there are no records
    idle_s: float | None = None
    # phase, phase_s: phase of the slowest rank, and how long it has been in it
    phase: str = QUIET_START
    # global rank -> progress, for ranks that have left a record
    ranks: Mapping[int, RankProgress] = field(default_factory=dict)
    phase_s: float | None = None

    @property
    def step(self) -> int:
        """Return the newest step that the slowest rank has worked on; 0 before the first."""
        return min((rank.step for rank in self.ranks.values()), default=0)


class RankWatch:
    """The records of this node's ranks, from the start of an attempt to its end."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = tuple(ranks)
        self._folder: Path | None = None
        self.variables = {DIR_VARIABLE: ""}
        self._seen: dict[int, bytes] = {}
        self._now: dict[int, RankProgress] = {}
        self._changed_s = self._looked_s = self._opened_s = time.monotonic()
        self._entered_s: dict[int, float] = {}
        self._closed = threading.Event()

    def open(self) -> dict[str, str]:
        """Make the folder for the records; return variables for the ranks' environment."""
        try:
            parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            (folder / ALIVE).touch()
            self._folder = folder
        except OSError:  # a full or missing /tmp: then nobody knows, and training goes on
            return self.variables
        threading.Thread(target=self._say_alive, args=(folder,), daemon=True).start()
        self.variables = {DIR_VARIABLE: str(folder)}
        return self.variables

    def close(self) -> None:
        """Remove the folder."""
        self._closed.set()
        if self._folder:
            ours.remove(self._folder)

    def look(self) -> None:
        """Read changed records. Call it often: each call sees at most one step of a rank."""
        if self._folder is None:
            return
        now_s = time.monotonic()
        if (gap_s := now_s - self._looked_s) > PAUSE_S:
            self._changed_s += gap_s
        self._looked_s = now_s
        for rank in self._ranks:
            with contextlib.suppress(OSError):
                with open_regular(self._folder / f"rank-{rank}") as file:
                    record = file.read(RECORD_BYTES)
                if record and record != self._seen.get(rank):
                    self._seen[rank], self._changed_s = record, time.monotonic()
                    self._take(rank, record)

    def _say_alive(self, folder: Path) -> None:
        """Show the ranks' guards that this process works, in a thread of its own: the shared folder may be slow."""
        while not self._closed.wait(PULSE_S):
            if time.monotonic() - self._looked_s < HUNG_S:
                with contextlib.suppress(OSError):
                    os.utime(folder / ALIVE)

    def heartbeat(self, host: str) -> Heartbeat:
        """Return the present heartbeat."""
        ranks = dict(self._now)
        slowest = min(ranks, key=lambda rank: ranks[rank].step, default=None)
        entered_s = self._opened_s if slowest is None else self._entered_s[slowest]
        return Heartbeat(
            ts=time.time(),
            host=host,
            idle_s=round(time.monotonic() - self._changed_s, 1) if ranks else None,
            phase=QUIET_START if slowest is None else ranks[slowest].phase,
            phase_s=round(time.monotonic() - entered_s, 1),
            ranks=ranks,
        )

    def ends(self) -> dict[int, RankEnd]:
        """Return, by rank, last records that could not be written to the shared folder; none after `close`."""
        if self._folder is None:
            return {}
        records = {rank: RankEnd.read(self._folder / f"rank-{rank}.json") for rank in self._ranks}
        return {rank: record for rank, record in records.items() if record and record.state == "ended"}

    def placed(self, ends: Sequence[RankEnd]) -> tuple[RankEnd, ...]:
        """Return the ranks' ends, each with its newest step and its last phase."""
        seen = [(end, self._now.get(end.rank)) for end in ends]
        return tuple(replace(end, step=at.step, phase=at.phase) if at else end for end, at in seen)

    def _take(self, rank: int, record: bytes) -> None:
        try:
            now = decode(RankProgress, json.loads(record))
        except (ValueError, RecursionError):  # caught in the middle of a write; the next look sees it whole
            return
        before, self._now[rank] = self._now.get(rank), now
        if before is None or before.phase != now.phase:
            self._entered_s[rank] = time.monotonic()
