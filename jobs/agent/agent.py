"""One node of an attempt: claim, launch, watch, push, and write the outcome. The reconciler decides the next step.

Started on every node of a job by srun (or by the local executor):  python -m dscampaign.jobs.agent BATCH_DIR [INDEX]
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dscampaign.files.ownership import Distrusted
from dscampaign.files.private_files import make_below
from dscampaign.jobs.collect.collector import Collector
from dscampaign.jobs.forward.processes import Forwarders
from dscampaign.jobs.shared import checkpoint_retention, spool_steps
from dscampaign.jobs.shared.code_copy import DamagedCopy
from dscampaign.jobs.shared.job_array import is_closed
from dscampaign.jobs.shared.layout import payloads_file
from dscampaign.jobs.shared.payload import SETUP_PYTHON, Identity, Payload
from dscampaign.jobs.shared.sharing import Sharing, open_to_readers

from . import evidence
from .evidence import EXIT_NOT_MINE, NodeOutcome, RankEnd
from .launch import Launcher
from .node import Node, RendezvousTimeout, Start
from .node_facts import NodeFacts
from .progress import RankWatch
from .push import Pusher
from .search import Search
from .shared_folder import SharedFolder, keep_room, leave
from .start import Starter, trusted_payload
from .telemetry import Telemetry
from .watch import Watch

EXIT_FAILED = 1
HEARTBEAT_S = 10.0
JOIN_TIMEOUT_S = 600.0  # other nodes wait for node 0 for so long without a sign of life


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
    if chosen := os.environ.get(SETUP_PYTHON) if payload.setup_chooses else None:
        payload = replace(payload, python=chosen)
    closed = partial(is_closed, batch, index)
    return Agent(payload, Node.from_environment(os.environ), umask, closed).run()


class Agent:
    """A node's part of an attempt; ``umask``, of the user, is for the ranks, without write permission for others."""

    def __init__(
        self, payload: Payload, node: Node, umask: int = 0o077, closed: Callable[[], bool] = lambda: False
    ) -> None:
        self.payload, self.node, self._umask = payload, node, umask | 0o022
        self._starter = Starter(payload, node, self._beat, closed)
        self.paths, self.run_paths = payload.paths, payload.run_paths
        first = node.rank * payload.ranks_per_node
        self.ranks = range(first, first + payload.ranks_per_node)
        self.progress = RankWatch(self.ranks)
        self._last_beat_s = 0.0
        self._ends: dict[int, RankEnd] = {}
        self._folder = SharedFolder(self.run_paths.campaign_marker)
        asked = closed if payload.task is not None else None  # of a job of its own, Slurm's signal says so
        self._watch = Watch(payload, node, self._folder, self.progress, self._beat, asked)
        gpus, visible = payload.gpus_per_node, node.visible_devices
        self._facts = NodeFacts(gpus, visible)
        used = 0 if payload.env.get("DS_ACCELERATOR") == "cpu" else gpus
        self._telemetry = Telemetry(used, visible, node.name, self.paths.gpu_spool(node.rank), payload.telemetry_s)

    def run(self) -> int:
        """Run the attempt's part on this node; return the exit code for Slurm."""
        self._watch.heed_signals()
        started_s, rank = time.time(), self.node.rank
        try:
            agreed = self._starter.begin(JOIN_TIMEOUT_S)
        except RendezvousTimeout as exc:
            print(exc, file=sys.stderr)
            self._write_outcome(None, "rendezvous", started_s, Start("", "", "", 0, "", 0, started_s))
            return EXIT_FAILED
        except DamagedCopy as exc:
            print(f"the copy of the code cannot be used: {exc}", file=sys.stderr)
            return EXIT_FAILED
        if agreed is None:  # another job runs this attempt
            return EXIT_NOT_MINE
        self.payload = agreed.payload
        start, workdir = agreed.start, Path(self.payload.workdir)  # it may lie on a file system of its own
        missing = f"{workdir}, where the training starts, is not there"
        if not self._folder.wait_for(workdir.is_dir, missing, own=True):
            self._write_outcome(None, evidence.NO_WORKDIR, started_s, start)
            return EXIT_FAILED
        # A password travels only in the environment, never in a file of ours.
        store = os.environ.get("CAMPAIGN_STORE", self.payload.store) if self.payload.store and not rank else None
        pusher, forwarders = Pusher(self.payload, self.paths.metrics, store), Forwarders(self.paths)
        pusher.start()
        launcher = Launcher(self.node, self._watch, self.progress, self._umask, agreed.copy)
        for folder in (self.paths.logs, self.paths.ranks):
            make_below(self.run_paths.dir, folder)
        sharing = Sharing.read(self.run_paths.campaign_marker)
        make_below(self.run_paths.dir, self._checkpoints, closed=sharing is None or not sharing.checkpoints)
        keep_room(self.paths.reserve(rank))
        self.progress.open()
        self._facts.ready()
        try:
            exit_code, ended_by = self._search_and_train(start, launcher, forwarders)
        finally:
            self._ends = self.progress.ends()
            self.progress.close()
        forwarders.end(exit_code, ended_by)
        outcome = self._write_outcome(exit_code, ended_by, started_s, start, launcher.facts)
        self._telemetry.wait()
        pusher.finish()  # late: it may take longer than Slurm lets a cancelled job live
        forwarders.wait()  # until then they had as long as this took
        if rank == 0 and self.payload.train:  # a killed rank's draft takes room that the next attempt may need
            checkpoint_retention.remove_drafts(self._checkpoints, self.payload.generation + 1)
        return 0 if outcome.launcher_exit == 0 else EXIT_FAILED

    @property
    def _checkpoints(self) -> Path:
        return self.run_paths.checkpoints(self.payload.config_hash)

    def _search_and_train(self, start: Start, launcher: Launcher, forwarders: Forwarders) -> tuple[int | None, str]:
        if start.search_from is not None:
            search = Search(self.payload, self.node, launcher.launch, self._starter.tell)
            searched = search.run(start, self._watch.over)
            if searched.ended_by:
                return None, searched.ended_by
            start, self.payload = searched.start, searched.payload
        self._telemetry.start()
        collector = None
        if self.node.rank == 0:
            forwarders.start(self.payload)
            if not self.payload.train:
                collector = Collector(self.payload, self.paths, self._watch.first_pid)
        ended = launcher.launch(self.payload, self.paths, start, collector)
        self._telemetry.stop()
        if collector:
            finish = partial(collector.finish, well=ended[0] == 0)
            self._folder.wait_for(finish, f"{self.paths.metrics} cannot be written")
        return ended

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat_s >= HEARTBEAT_S:
            self._last_beat_s = time.monotonic()
            with contextlib.suppress(OSError):  # a full disk ends in the ranks' own error, which says more
                self.progress.heartbeat(self.node.name).write(self.paths.heartbeat(self.node.rank))
                open_to_readers(self.paths)

    def _write_outcome(
        self,
        exit_code: int | None,
        ended_by: str,
        started_s: float,
        start: Start,
        launched: Mapping[str, Any] = MappingProxyType({}),
    ) -> NodeOutcome:
        ended_s, begun_at = time.time(), start.start_step
        if begun_at is None:
            begun_at = spool_steps.steps_before(self.paths.metrics)
        # wait for what shows how the ranks ended
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
            start_step=begun_at,
            last_step=spool_steps.last_step(self.paths.metrics, self.payload.target_step),
            ranks=self.progress.placed(evidence.rank_ends(self.paths, self.ranks, self._watch.gone_s, self._ends)),
            lines=evidence.gather_lines(self.paths, self.ranks, self.node.rank, self.payload.user_patterns),
            target_step=spool_steps.target_step(self.paths.metrics),
            step_reached=spool_steps.step_reached(self.paths.metrics, start.start_step or 0, self.payload.target_step),
            diverged_at=spool_steps.diverged_at(self.paths.metrics),
            ending_s=self._watch.ending_s,
            **launched,
            workdir=self.payload.workdir if ended_by == evidence.NO_WORKDIR else "",
            **self._facts.end(),
        )
        with contextlib.suppress(OSError):
            open_to_readers(self.paths)
        reserve, path = self.paths.reserve(self.node.rank), self.paths.outcome(self.node.rank)
        self._folder.wait_for(partial(leave, outcome, path, reserve), f"{path} cannot be written")
        return outcome
