"""One node of an attempt: claim, launch, watch, push, and write the outcome.

Started on every node of a job by srun (or by the local executor):  python -m dscampaign.jobs.agent BATCH_DIR [INDEX]
It leaves evidence; the reconciler decides the next step.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import Distrusted
from dscampaign.files.private_files import make_below, open_private
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.forward.processes import Forwarders
from dscampaign.jobs.shared import allocator, checkpoint_retention, spool_steps, variables
from dscampaign.jobs.shared.closed_tasks import is_closed
from dscampaign.jobs.shared.code_copy import CodeCopy, DamagedCopy
from dscampaign.jobs.shared.identity import Identity
from dscampaign.jobs.shared.layout import AttemptPaths, RunPaths, payloads_file
from dscampaign.jobs.shared.payload import Payload
from dscampaign.jobs.shared.process_groups import signal_group
from dscampaign.jobs.shared.sharing import checkpoints_shared, open_to_readers

from . import cleanup, evidence, launch, node_cache
from .evidence import RESTORED, NodeOutcome, RankRecord
from .node import Node, RendezvousTimeout, Start
from .node_facts import NodeFacts
from .progress import RankWatch
from .push import Pusher
from .search import Search
from .shared_folder import SharedFolder, keep_room, leave
from .start import Starter, trusted_payload
from .telemetry import Telemetry
from .watch import LINGER_S, LINGERS, TERM_GRACE_S, Watch

EXIT_FAILED = 1
EXIT_NOT_MINE = 75
HEARTBEAT_S = 10.0
JOIN_TIMEOUT_S = 600.0
"""Other nodes wait for node 0 for so long without a sign of life."""
_NAMED_COMMANDS = 5
_BUILDS = "TORCH_EXTENSIONS_DIR"

DEAF_TO_USR2 = ("/bin/sh", "-c", 'trap "" USR2; exec "$@"', "launcher")
"""Slurm may send USR2 to every process of the job, and the launcher would die of it. A signal that is ignored stays
ignored in the ranks until they ask for it."""


def main(argv: list[str]) -> int:
    """Run this node's part of element ``argv[1]``, by default ``SLURM_ARRAY_TASK_ID``, of the batch in ``argv[0]``."""
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
    """One node's part of an attempt.

    Args:
        umask: the user's, for the ranks: their files are the user's own. Only write permission for others is taken
            away, for a later attempt reads files of an earlier one.
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
        self._last_beat_s = 0.0
        self._progress_env: dict[str, str] = {}
        self._ends: dict[int, RankRecord] = {}
        self._launched: dict[str, Any] = {}
        self._folder = SharedFolder(self.run_paths.campaign_marker)
        self._watch = Watch(payload, node, self._folder, self.progress, self._beat)
        self._copy: CodeCopy | None = None
        self._tell: Callable[..., None] = lambda *_, **__: None
        self._collector: Collector | None = None
        gpus, visible = payload.gpus_per_node, node.visible_devices
        self._facts = NodeFacts(gpus, visible)
        used = 0 if payload.env.get("DS_ACCELERATOR") == "cpu" else gpus
        self._telemetry = Telemetry(used, visible, node.name, self.paths.gpu_spool(node.rank), payload.telemetry_s)

    def run(self) -> int:
        """Run the attempt's part on this node; return the exit code for Slurm."""
        self._watch.heed_signals()
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
        forwarders = Forwarders(self.paths)
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
        """Agree with the other nodes on the start; return None if another job runs this attempt."""
        starter = Starter(self.payload, self.node, self._beat, self._closed)
        begun = starter.begin(JOIN_TIMEOUT_S)
        if begun is None:
            return None
        self.payload, self._copy, self._tell = begun.payload, begun.copy, starter.tell
        rank = self.node.rank
        self._folder.hold(self.paths.node_claim(rank) if rank else self.paths.claim)
        return begun.start

    def _can_enter(self) -> bool:
        """Wait a moment for the folder in which the ranks start: it may lie on a file system of its own."""
        workdir = Path(self.payload.workdir)
        return self._folder.wait_for(workdir.is_dir, f"{workdir}, where the training starts, is not there", own=True)

    @property
    def _checkpoints(self) -> Path:
        return self.run_paths.checkpoints(self.payload.config_hash)

    # -- watch ---------------------------------------------------------------------------------------------------

    def _search_and_train(self, start: Start, forwarders: Forwarders) -> tuple[int | None, str]:
        for folder in (self.paths.logs, self.paths.ranks):
            make_below(self.run_paths.dir, folder)
        make_below(self.run_paths.dir, self._checkpoints, closed=not checkpoints_shared(self.run_paths.campaign_marker))
        keep_room(self.paths.reserve(self.node.rank))
        self._progress_env = self.progress.open()
        self._facts.ready()
        try:
            if start.search_from is not None:
                search = Search(self.payload, self.node, self._launch, self._tell)
                searched = search.run(start, self._watch.over)
                if searched.ended_by:
                    return None, searched.ended_by
                start, self.payload = searched.start, searched.payload
            return self._train(start, forwarders)
        finally:
            self._ends = self.progress.ends()
            self.progress.close()

    def _train(self, start: Start, forwarders: Forwarders) -> tuple[int, str]:
        self._telemetry.start()
        if self.node.rank == 0:
            forwarders.start(self.payload)
        if self.node.rank == 0 and not self.payload.train:
            self._collector = Collector(self.payload, self.paths, self._watch.first_pid)
        ended = self._launch(self.payload, self.paths, start)
        self._telemetry.stop()
        if self._collector:
            self._collector.finish()
        return ended

    def _launch(self, payload: Payload, paths: AttemptPaths, start: Start) -> tuple[int, str]:
        """Start this node's ranks and wait; return their launcher's exit code, and why they were ended."""
        hostfile = paths.dir / f"hostfile-{self.node.rank}"
        write_atomically(hostfile, launch.hostfile_text(payload.nodes, payload.ranks_per_node))
        cores = len(os.sched_getaffinity(0))
        caches = node_cache.variables(os.environ | payload.env)
        env = launch.environment(payload, paths, self.node, start.resume, os.environ | caches, cores, self._copy)
        env |= self._progress_env
        digests = variables.digests(os.environ, payload.env)
        self._launched = {"allocator": allocator.setting(env), "variables": digests}
        line = launch.command(payload, paths, hostfile, self.node.rank, start.address, start.port, self._copy)
        for lock in cleanup.clear_build_locks(Path(caches[_BUILDS])) if _BUILDS in caches else ():
            print(f"{lock} was removed: its build has ended", file=sys.stderr, flush=True)
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
        ended_by = self._watch.follow(launcher, paths, start, self._collector)
        signal_group(launcher.pid)  # ranks and loader workers that outlived their launcher
        self._end_left_processes(paths)
        self.progress.look()
        if ended_by == LINGERS:
            print(
                f"ranks that had ended well {LINGER_S / 60:.0f} minutes ago were still there: killed", file=sys.stderr
            )
            return 0, "stop" if self._watch.stop_asked else ""
        return launcher.wait(), ended_by

    def _end_left_processes(self, paths: AttemptPaths) -> None:
        if left := cleanup.end_left_processes(paths.dir, TERM_GRACE_S):
            first = f"{left[0]}{f', and {len(left) - 1} more' if len(left) > 1 else ''}"
            message = f"the script left processes in sessions of their own, which were ended: {first}"
            self._tell("left_processes", message=message, commands=left[:_NAMED_COMMANDS])

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
            ranks=self.progress.placed(evidence.rank_ends(self.paths, self.ranks, self._watch.gone_s, self._ends)),
            lines=evidence.gather_lines(self.paths, self.ranks, self.node.rank, self.payload.user_patterns),
            target_step=spool_steps.target_step(self.paths.metrics),
            step_reached=spool_steps.step_reached(self.paths.metrics, start.start_step or 0, self.payload.target_step),
            diverged_at=spool_steps.diverged_at(self.paths.metrics),
            ending_s=self._watch.ending_s,
            **self._launched,
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
        if start.start_step is not None:
            return start.start_step + 1
        return spool_steps.first_step(self.paths.metrics, default=1)

    def _store_url(self) -> str | None:
        """A password travels only in the environment, never in a file of ours."""
        return os.environ.get("CAMPAIGN_STORE", self.payload.store) if self.payload.store else None
