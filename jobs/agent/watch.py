"""Watch this node's ranks during one launch: pass on a request to stop, and end them when they must end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from types import FrameType

from dscampaign.files.atomic_files import read_json, write_atomically
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.guard import start_time
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import terminate_group

from .cleanup import is_of
from .evidence import RankEnd
from .node import Node, Start
from .progress import RankWatch
from .shared_folder import SharedFolder
from .start import superseded

POLL_S = 0.5
STOP_REPEAT_S = 3.0
TERM_GRACE_S = 3.0  # below the usual KillWait, so that the outcome is written before Slurm kills us too
PEER_GRACE_S = 10.0
TEARDOWN_GRACE_S = 15.0  # the launcher ends ranks in turn, 30 s each; ranks that wait for a dead rank wait for nothing
LINGER_S = 1800.0  # a rank that has run its script may still upload while its interpreter ends; a longer end hangs
LINGERS = "lingers"
_Records = dict[int, RankEnd | None]  # by rank; None if it has left no record


class Watch:
    """The reasons to end this node's ranks, and the requests to stop.

    `closed` returns whether the attempt is to end while its job goes on with others; None if it has the job alone.

    Attributes:
        ending_s: time of the first request to the ranks to end, None if never.
        gone_s: by rank, when its process was seen to be gone without a record of its end.
    """

    def __init__(
        self,
        payload: Payload,
        node: Node,
        folder: SharedFolder,
        progress: RankWatch,
        beat: Callable[[], None],
        closed: Callable[[], bool] | None = None,
    ) -> None:
        self._payload, self._node, self._folder, self._progress, self._beat = payload, node, folder, progress, beat
        self._closed = closed
        self._paths = self._running = payload.paths
        self.stop_asked = self._term_asked = False
        self.ending_s: float | None = None
        self.gone_s: dict[int, float] = {}
        self._meeting: Start | None = None
        self._last_stop_s = 0.0
        self._since_s: dict[str, float] = {}

    def heed_signals(self) -> None:
        """Take SIGUSR2 as a request to stop, and SIGTERM as an order to end."""
        signal.signal(signal.SIGUSR2, self._on_usr2)
        signal.signal(signal.SIGTERM, self.on_term)

    def follow(
        self, launcher: subprocess.Popen[bytes], running: AttemptPaths, start: Start, collector: Collector | None
    ) -> str:
        """Watch the ranks of a launch until they end or must end; return why they were ended, "" if by themselves."""
        self._running, self._meeting, self._since_s = running, start, {}
        while launcher.poll() is None:
            collector.follow(POLL_S) if collector else time.sleep(POLL_S)
            self._progress.look()
            self._beat()
            if self.stop_asked:
                self._pass_on_stop()
            if reason := self._reason_to_end():
                self.ending_s = self.ending_s or time.time()
                terminate_group(launcher, TERM_GRACE_S)
                return reason
        return "signal" if self._term_asked else "stop" if self.stop_asked else ""

    def over(self) -> str:
        """Return why the attempt is over for all nodes; "" if it is not."""
        with contextlib.suppress(OSError):  # unknown while the shared folder is away
            if self._term_asked or (self._closed is not None and self._closed()):
                return "signal"
        holder = (read_json(self._paths.claim) or {}).get("job_id")  # another, if a restored folder had no claim
        if superseded(self._payload) or holder not in (None, self._node.job_id):
            return "superseded"
        others = (n for n in range(self._payload.nodes) if n != self._node.rank)
        outcomes = (read_json(self._paths.outcome(n)) for n in others)
        failed = any(o is not None and o.get("launcher_exit") != 0 for o in outcomes)
        return "peer" if self._lasting("peer", failed, PEER_GRACE_S) else ""

    def first_pid(self) -> int | None:
        """Return the process of the first rank, None while it is not known."""
        record = RankEnd.read(self._running.rank_record(0))
        return record.pid if record else None

    def _reason_to_end(self) -> str:
        records = self._rank_records()
        if reason := self.over() or self._went_on():
            return reason
        if self._lasting("teardown", self._rank_died(records), TEARDOWN_GRACE_S):
            return "teardown"
        ended = all(record is not None and record.exit == 0 for record in records.values())
        return LINGERS if self._lasting(LINGERS, ended, LINGER_S) else ""

    def _went_on(self) -> str:
        """In a search, node 0 may begin the next launch before this node's ranks have ended."""
        if self._node.rank == 0 or self._meeting is None or self._meeting.search_from is None:
            return ""
        now = Start.read(self._paths.started)
        return "went_on" if now and now.port != self._meeting.port else ""

    def _lasting(self, reason: str, condition: bool, grace_s: float) -> bool:
        if not condition:
            self._since_s.pop(reason, None)
            return False
        return time.monotonic() - self._since_s.setdefault(reason, time.monotonic()) >= grace_s

    def _rank_records(self) -> _Records:
        first = self._node.rank * self._payload.ranks_per_node
        ranks = range(first, first + self._payload.ranks_per_node)
        return {rank: RankEnd.read(self._running.rank_record(rank)) for rank in ranks}

    def _rank_died(self, records: _Records) -> bool:
        now_s = time.time()  # nobody knows who was first of those that went between two looks
        dead = [rank for rank, record in records.items() if record is not None and vanished(record)]
        for rank in dead:
            self.gone_s.setdefault(rank, now_s)
        return bool(dead) or any(r is not None and r.exit not in (None, 0) for r in records.values())

    def _pass_on_stop(self) -> None:
        """Repeat the request: a rank that is still importing has no handler yet.

        Only ranks get it: processes that they have started to save, such as an upload, would die of it.
        """
        if time.monotonic() - self._last_stop_s < STOP_REPEAT_S:
            return
        self._last_stop_s = time.monotonic()
        with contextlib.suppress(OSError):  # the shared folder may be away; the signal comes in any case
            if not self._running.stop.exists():
                write_atomically(self._running.stop, json.dumps({"ts": time.time()}))
        for record in self._rank_records().values():
            if record and record.pid and is_of(self._running.dir, record.pid):
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(record.pid, signal.SIGUSR2)

    def _on_usr2(self, _signum: int, _frame: FrameType | None) -> None:
        self.stop_asked = True

    def on_term(self, _signum: int, _frame: FrameType | None) -> None:
        """End the ranks, and wait for no folder for long."""
        self._term_asked = True
        self._folder.hurry()
        self.ending_s = self.ending_s or time.time()


def vanished(record: RankEnd) -> bool:
    """Return whether a rank's process is gone, or a zombie, without a record of its end."""
    return record.state == "running" and (record.pid is None or not start_time(record.pid))
