"""One node of one attempt: claim, launch, watch, push, write down how it ended.

Started on every node of a job by srun (or by the local executor):  python -m dscampaign.jobs.agent BATCH_DIR [INDEX]
It decides nothing about what comes next; it leaves evidence, and the reconciler decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType

from dscampaign.files.atomic_files import read_json, write_atomically
from dscampaign.files.ownership import Distrusted, planted
from dscampaign.files.private_files import make_below, open_private
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.forward.processes import Forwarders
from dscampaign.jobs.guard import start_time
from dscampaign.jobs.shared import allocator, checkpoint_retention, spool_steps, variables
from dscampaign.jobs.shared.closed_tasks import is_closed
from dscampaign.jobs.shared.code_copy import CodeCopy, DamagedCopy
from dscampaign.jobs.shared.identity import Identity
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths, payloads_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import signal_group, terminate_group
from dscampaign.jobs.shared.sharing import checkpoints_shared, open_to_readers

from . import cleanup, evidence, launch, node_cache
from .evidence import RESTORED, NodeOutcome, RankRecord
from .node import Node, RendezvousTimeout, Start
from .node_facts import NodeFacts
from .progress import RankWatch
from .push import Pusher
from .search import Search
from .shared_folder import SharedFolder, keep_room, leave
from .start import Starter, superseded, trusted_payload
from .telemetry import Telemetry

EXIT_FAILED = 1
EXIT_NOT_MINE = 75
POLL_S = 0.5
HEARTBEAT_S = 10.0
STOP_REPEAT_S = 3.0
JOIN_TIMEOUT_S = 600.0
"""Other nodes wait for node 0 for so long without a sign of life."""
TERM_GRACE_S = 3.0
_NAMED_COMMANDS = 5
"""Below the usual KillWait, so that the outcome is written before Slurm kills us too."""
PEER_GRACE_S = 10.0
TEARDOWN_GRACE_S = 15.0
"""The launcher ends ranks one after another, 30 s each; ranks that wait for a dead one wait for nothing."""

LINGER_S = 1800.0
"""A rank that has run its script may still upload while its interpreter ends; what takes longer hangs."""
LINGERS = "lingers"

_Records = dict[int, RankRecord | None]
"""By rank; None where it has not said anything."""

DEAF_TO_USR2 = ("/bin/sh", "-c", 'trap "" USR2; exec "$@"', "launcher")
"""Slurm may send USR2 to every process of the job, and the launcher would die of it. A signal that is ignored stays
ignored in the ranks until they ask for it."""


def main(argv: list[str]) -> int:
    """Runs this node's part of element ``argv[1]``, by default ``SLURM_ARRAY_TASK_ID``, of the batch in ``argv[0]``."""
    umask = os.umask(0o077)
    index = int(argv[1] if len(argv) > 1 else os.environ["SLURM_ARRAY_TASK_ID"])
    batch = Path(argv[0])
    try:
        payload = trusted_payload(payloads_file(batch), index, batch.parents[2])
    except Distrusted as doubt:
        print(f"{evidence.REFUSED} not run: {doubt}", file=sys.stderr)
        return EXIT_NOT_MINE
    closed = partial(is_closed, batch, index)
    return Agent(payload, Node.from_environment(os.environ), umask, closed).run()


class Agent:
    """The state of one node's watch over its ranks.

    Args:
        payload: what to run.
        node: this node.
        umask: the user's, which the ranks get: what they write is the user's own. Only that others may write to it is
            taken away, for a later attempt reads what an earlier one has left.
        closed: whether the attempt may no longer begin.
    """

    def __init__(
        self, payload: Payload, node: Node, umask: int = 0o077, closed: Callable[[], bool] = lambda: False
    ) -> None:
        self._closed = closed
        self.payload, self.node, self._umask = payload, node, umask | 0o022
        self.paths, self.run_paths = AttemptPaths(Path(payload.attempt_dir)), RunPaths(Path(payload.run_dir))
        first = node.rank * payload.ranks_per_node
        self.ranks = range(first, first + payload.ranks_per_node)
        self.progress = RankWatch(self.ranks)
        self._stop_asked = self._term_asked = False
        self._last_beat_s = self._last_stop_s = 0.0
        self._since: dict[str, float] = {}
        self._progress_env: dict[str, str] = {}
        self._gone_s: dict[int, float] = {}
        self._ends: dict[int, RankRecord] = {}
        self._ending_s: float | None = None
        self._allocator = ""
        self._variables: dict[str, str] | None = None
        self._folder = SharedFolder(self.run_paths.campaign_marker)
        self._copy: CodeCopy | None = None
        self._tell: Callable[..., None] = _nobody
        self._running = self.paths
        self._meeting: Start | None = None
        self._collector: Collector | None = None
        gpus, visible = payload.gpus_per_node, node.visible_devices
        self._facts = NodeFacts(gpus, visible)
        used = 0 if payload.env.get("DS_ACCELERATOR") == "cpu" else gpus
        self._telemetry = Telemetry(used, visible, node.name, self.paths.gpu_spool(node.rank), payload.telemetry_s)

    def run(self) -> int:
        """Runs the attempt's part on this node; returns the exit code for Slurm."""
        signal.signal(signal.SIGUSR2, self._on_usr2)
        signal.signal(signal.SIGTERM, self._on_term)
        started_s = time.time()
        try:
            start = self._start()
        except RendezvousTimeout as exc:
            print(exc, file=sys.stderr)
            self._write_outcome(None, "rendezvous", started_s, Start("", "", "", 0, "", 0, started_s))
            return EXIT_FAILED
        except DamagedCopy as exc:
            print(f"the copy of the code cannot be used: {exc}", file=sys.stderr)
            return EXIT_FAILED
        if start is None:
            return EXIT_NOT_MINE
        if not self._can_enter():
            self._write_outcome(None, evidence.NO_WORKDIR, started_s, start)
            return EXIT_FAILED
        pusher = Pusher(self.payload, self.paths.metrics, self._store_url() if self.node.rank == 0 else None)
        pusher.start()
        forwarders = Forwarders(self.payload, self.paths, self.node.rank)
        exit_code, ended_by = self._search_and_train(start, forwarders)
        forwarders.end(exit_code, ended_by)
        if self._folder.is_restored():
            ended_by = RESTORED
        outcome = self._write_outcome(exit_code, ended_by, started_s, start)
        self._telemetry.wait()
        pusher.finish()  # late: it may take longer than Slurm lets a cancelled job live
        forwarders.wait()  # until then they had as long as this took
        if self.node.rank == 0:  # what a killed rank left half written takes room that the next attempt may need
            checkpoint_retention.remove_drafts(self._checkpoints, self.payload.generation + 1)
        return 0 if outcome.launcher_exit == 0 and ended_by != RESTORED else EXIT_FAILED

    # -- start ---------------------------------------------------------------------------------------------------

    def _start(self) -> Start | None:
        """Agrees with the other nodes on how to start; None if another job runs this attempt."""
        starter = Starter(self.payload, self.node, self._beat, self._closed)
        begun = starter.begin(JOIN_TIMEOUT_S)
        if begun is None:
            return None
        self.payload, self._copy, self._tell = begun.payload, begun.copy, starter.tell
        rank = self.node.rank
        self._folder.hold(self.paths.node_claim(rank) if rank else self.paths.claim)
        return begun.start

    def _can_enter(self) -> bool:
        """Waits a moment for the folder in which the ranks are to start: it may lie on a file system of its own."""
        workdir = Path(self.payload.workdir)
        return self._folder.wait_for(workdir.is_dir, f"{workdir}, where the training starts, is not there", own=True)

    @property
    def _checkpoints(self) -> Path:
        return self.run_paths.checkpoints(self.payload.config_hash)

    # -- watch ---------------------------------------------------------------------------------------------------

    def _search_and_train(self, start: Start, forwarders: Forwarders) -> tuple[int | None, str]:
        """Searches for the micro-batch first, where it is to be found; then trains."""
        for folder in (self.paths.logs, self.paths.ranks):
            make_below(self.run_paths.dir, folder)
        make_below(self.run_paths.dir, self._checkpoints, closed=not checkpoints_shared(self.run_paths.campaign_marker))
        keep_room(self.paths.reserve(self.node.rank))
        self._progress_env = self.progress.open()
        self._facts.ready()
        try:
            if start.search_from is not None:
                search = Search(self.payload, self.node, self._launch, self._tell)
                searched = search.run(start, self._over)
                if searched.ended_by:
                    return None, searched.ended_by
                start, self.payload = searched.start, searched.payload
            return self._train(start, forwarders)
        finally:
            self._ends = self.progress.ends()
            self.progress.close()

    def _train(self, start: Start, forwarders: Forwarders) -> tuple[int, str]:
        self._telemetry.start()
        forwarders.start(self.payload)
        if self.node.rank == 0 and not self.payload.train:
            self._collector = Collector(self.payload, self.paths, self._first_pid)
        ended = self._launch(self.payload, self.paths, start)
        self._telemetry.stop()
        if self._collector:
            self._collector.finish()
        return ended

    def _launch(self, payload: Payload, paths: AttemptPaths, start: Start) -> tuple[int, str]:
        """Starts the ranks of this node and waits for them: their launcher's exit code, and why they were ended."""
        hostfile = paths.dir / f"hostfile-{self.node.rank}"
        write_atomically(hostfile, launch.hostfile_text(payload.nodes, payload.ranks_per_node))
        cores = len(os.sched_getaffinity(0))
        base = os.environ | node_cache.variables(os.environ | payload.env)
        env = launch.environment(payload, paths, self.node, start.resume, base, cores, self._copy)
        env |= self._progress_env
        self._allocator = allocator.told(env)
        self._variables = variables.digests(os.environ, payload.env)
        line = launch.command(payload, paths, hostfile, self.node.rank, start.address, start.port, self._copy)
        for lock in cleanup.clear_build_locks(env):
            stays = "stays, remove it if no build ever goes on" if lock.exists() else "was removed"
            print(f"{lock} {stays}: its build has ended", file=sys.stderr, flush=True)
        self._running, self._meeting, self._since = paths, start, {}
        with open(paths.launcher_log(self.node.rank), "ab", opener=open_private) as log:
            launcher = subprocess.Popen(
                [*DEAF_TO_USR2, *line],
                cwd=paths.dir,  # `python -m` puts the present folder first: the user's would shadow modules
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=self._umask,
            )
        ended_by = self._watch(launcher)
        signal_group(launcher.pid)  # ranks and loader workers that outlived their launcher
        self._end_left_processes(paths)
        cleanup.clear_shared_memory(start.address, start.port)
        self.progress.look()
        if ended_by == LINGERS:
            print(
                f"ranks that had ended well {LINGER_S / 60:.0f} minutes ago were still there: killed", file=sys.stderr
            )
            return 0, "stop" if self._stop_asked else ""
        return launcher.wait(), ended_by

    def _end_left_processes(self, paths: AttemptPaths) -> None:
        if left := cleanup.end_left_processes(paths.dir, TERM_GRACE_S):
            first = f"{left[0]}{f', and {len(left) - 1} more' if len(left) > 1 else ''}"
            message = f"the script left processes in sessions of their own, which were ended: {first}"
            self._tell("left_processes", message=message, commands=left[:_NAMED_COMMANDS])

    def _watch(self, launcher: subprocess.Popen[bytes]) -> str:
        while launcher.poll() is None:
            self._collector.wait(POLL_S) if self._collector else time.sleep(POLL_S)
            self.progress.look()
            self._beat()
            if self._collector:
                self._collector.look()
            if self._stop_asked:
                self._pass_on_stop(launcher)
            if reason := self._reason_to_end():
                self._ending_s = self._ending_s or time.time()
                terminate_group(launcher, TERM_GRACE_S)
                return reason
        return "signal" if self._term_asked else "stop" if self._stop_asked else ""

    def _reason_to_end(self) -> str:
        records = self._rank_records()
        return self._over() or self._went_on() or self._teardown(records) or self._lingers(records)

    def _went_on(self) -> str:
        if self.node.rank == 0 or self._meeting is None or self._meeting.search_from is None:
            return ""
        now = Start.read(self.paths)
        return "went_on" if now and now.port != self._meeting.port else ""

    def _over(self) -> str:
        """Why the attempt is over, whatever this node's ranks do; "" where it is not."""
        if self._term_asked:
            return "signal"
        if self._superseded():
            return "superseded"
        if self._lasting(RESTORED, self._folder.is_restored(), PEER_GRACE_S):
            return RESTORED
        return "peer" if self._lasting("peer", self._peer_failed(), PEER_GRACE_S) else ""

    def _teardown(self, records: _Records) -> str:
        return "teardown" if self._lasting("teardown", self._rank_died(records), TEARDOWN_GRACE_S) else ""

    def _lingers(self, records: _Records) -> str:
        ended = all(record is not None and record.exit == 0 for record in records.values())
        return LINGERS if self._lasting(LINGERS, ended, LINGER_S) else ""

    def _lasting(self, what: str, condition: bool, grace_s: float) -> bool:
        """True once ``condition`` has held for ``grace_s``."""
        if not condition:
            self._since.pop(what, None)
            return False
        return time.monotonic() - self._since.setdefault(what, time.monotonic()) >= grace_s

    def _superseded(self) -> bool:
        return superseded(self.run_paths, self.payload.generation)

    def _peer_failed(self) -> bool:
        others = (n for n in range(self.payload.nodes) if n != self.node.rank)
        outcomes = (read_json(self.paths.outcome(n)) for n in others)
        return any(o is not None and o.get("launcher_exit") != 0 for o in outcomes)

    def _first_pid(self) -> int | None:
        record = RankRecord.read(self._running.rank_record(0))
        return record.pid if record else None

    def _rank_records(self) -> _Records:
        return {rank: RankRecord.read(self._running.rank_record(rank)) for rank in self.ranks}

    def _rank_pids(self) -> list[int]:
        return [record.pid for record in self._rank_records().values() if record and record.pid]

    def _rank_died(self, records: _Records) -> bool:
        gone = [rank for rank, record in records.items() if record is not None and _vanished(record)]
        for rank in gone:
            self._gone_s.setdefault(rank, time.time())
        return bool(gone) or any(r is not None and r.exit not in (None, 0) for r in records.values())

    def _pass_on_stop(self, launcher: subprocess.Popen[bytes]) -> None:
        """Again and again: a rank that is still importing has no handler yet and would miss the only signal.

        To ranks alone: what they have started in order to save, such as an upload, would die of it.
        """
        if time.monotonic() - self._last_stop_s >= STOP_REPEAT_S:
            self._last_stop_s = time.monotonic()
            with contextlib.suppress(OSError):  # the shared folder may be away; the signal comes in any case
                if planted(self._running.stop) or not self._running.stop.exists():
                    write_atomically(self._running.stop, json.dumps({"ts": time.time()}))
            for pid in self._rank_pids():
                with contextlib.suppress(OSError):  # it has ended; in a container, pids are not those of the node
                    if os.getpgid(pid) == launcher.pid:
                        os.kill(pid, signal.SIGUSR2)

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat_s >= HEARTBEAT_S:
            self._last_beat_s = time.monotonic()
            with contextlib.suppress(OSError):  # a full disk ends in the ranks' own error, which says more
                self.progress.heartbeat(self.node.name).write(self.paths.heartbeat(self.node.rank))
                open_to_readers(self.paths)

    # -- end -----------------------------------------------------------------------------------------------------

    def _write_outcome(self, exit_code: int | None, ended_by: str, started_s: float, start: Start) -> NodeOutcome:
        ended_s = time.time()
        restored = ended_by == RESTORED
        if not restored:  # wait for what shows how the ranks ended
            self._folder.wait_for(self.paths.dir.is_dir, f"{self.paths.dir} is away")
        outcome = NodeOutcome(
            **asdict(Identity.of(self.payload)),
            job_id=self.node.job_id,
            node_rank=self.node.rank,
            host=self.node.name,
            launcher_exit=exit_code,
            ended_by=ended_by,
            started_s=started_s,
            ended_s=ended_s,
            start_step=self._first_step(start) - 1,
            last_step=spool_steps.last_step(self.paths.metrics, self.payload.target_step),
            ranks=self.progress.placed(evidence.rank_ends(self.paths, self.ranks, self._gone_s, self._ends)),
            lines=evidence.gather_lines(self.paths, self.ranks, self.node.rank, self.payload.user_patterns),
            target_step=spool_steps.target_step(self.paths.metrics),
            step_reached=spool_steps.step_reached(self.paths.metrics, start.start_step or 0, self.payload.target_step),
            diverged_at=spool_steps.diverged_at(self.paths.metrics),
            ending_s=self._ending_s,
            allocator=self._allocator,
            variables=self._variables,
            workdir=self.payload.workdir if ended_by == evidence.NO_WORKDIR else "",
            **self._facts.end(),
        )
        if restored and not self.paths.dir.is_dir():
            print(f"{self.paths.dir} is no more: the campaign's folder was restored", file=sys.stderr, flush=True)
            return outcome
        with contextlib.suppress(OSError):
            open_to_readers(self.paths)
        reserve, path = self.paths.reserve(self.node.rank), self.paths.outcome(self.node.rank)
        self._folder.wait_for(partial(leave, outcome, path, reserve), f"{path} cannot be written")
        return outcome

    def _first_step(self, start: Start) -> int:
        """The first step of this attempt; only a script with checkpoints of its own has to be asked."""
        if start.start_step is not None:
            return start.start_step + 1
        return spool_steps.first_step(self.paths.metrics, default=1)

    def _store_url(self) -> str | None:
        """The store to push to. A password travels only in the environment, never in a file of ours."""
        return os.environ.get("CAMPAIGN_STORE", self.payload.store) if self.payload.store else None

    def _on_usr2(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop_asked = True

    def _on_term(self, _signum: int, _frame: FrameType | None) -> None:
        self._term_asked = True
        self._folder.hurry()
        self._ending_s = self._ending_s or time.time()


def _nobody(_event: str, **_data: object) -> None:
    """Whom an event is told before the attempt has begun."""


def _vanished(record: RankRecord) -> bool:
    """Whether a rank's process is gone without a record of its end; one that nobody has collected yet is."""
    return record.state == "running" and (record.pid is None or not start_time(record.pid))
