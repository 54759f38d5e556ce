"""The real agent without its launcher: the test makes its ranks' steps and their end. The files are the agent's own."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_below
from dscampaign.jobs.agent.agent import JOIN_TIMEOUT_S, Agent
from dscampaign.jobs.agent.node import Node, Start
from dscampaign.jobs.agent.start import superseded
from dscampaign.jobs.report import _Spool
from dscampaign.jobs.shared import checkpoint
from dscampaign.jobs.shared.checkpoint import Manifest
from dscampaign.jobs.shared.job_array import is_closed
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.tests.simulation.fates import Fate

CHECKPOINT_EVERY = 2


class FakeAgent(Agent):
    """One node's agent and its rank.

    Attributes:
        start: what the nodes agreed on; None before, and for an attempt that is another job's.
        alive: whether its processes run.
        step: steps that its training has made.
    """

    def __init__(self, payload: Payload, node: Node, started_s: float, index: int) -> None:
        made, runs = Path(payload.attempt_dir), Path(payload.run_dir).parent
        make_below(runs, made)  # as its program does before anything else
        batch = CampaignPaths(runs.parents[1], payload.campaign).batch(payload.token)
        super().__init__(payload, node, closed=partial(is_closed, batch, index))
        self.start: Start | None = None
        self.alive = False
        self.step = 0
        self._started_s = started_s

    @property
    def finished(self) -> bool:
        """Whether the target is reached."""
        return self.step >= (self.payload.target_step or 0)

    @property
    def superseded(self) -> bool:
        """Whether a newer generation may write, as the agent looks for it."""
        return superseded(self.payload)

    def begin(self) -> bool:
        """Claims the attempt, or joins the node that has; False if it is another job's."""
        begun = self._starter.begin(JOIN_TIMEOUT_S)
        if begun is None:
            return False
        self.payload = begun.payload
        self.start = begun.start
        for folder in (self.paths.logs, self.paths.ranks, self._checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        self._record({"state": "running"})
        self.step = self.start.start_step or 0
        self.alive = True
        return True

    def watch(self) -> None:
        """One look of the agent's loop: a sign of life."""
        self._beat()

    def train(self) -> None:
        """One optimizer step: the first rank reports it, and saves at every second."""
        self.step += 1
        if self.node.rank == 0:
            self._report({"step": self.step, "ts": self._started_s, "loss": 1 / self.step})
            if self.step % CHECKPOINT_EVERY == 0:
                self.save()

    def save(self) -> None:
        """Writes a checkpoint, as all ranks together do."""
        if self.payload.train is None or self.node.rank or not self.step:
            return
        draft = self._draft()
        entries = checkpoint.seal(draft, list(draft.iterdir()))
        world_size, stage = self.payload.world_size, int(self.payload.train["zero_stage"])
        values = (self.step, self.payload.config_hash, world_size, stage, self.payload.generation, 8 * self.step)
        if not draft.with_name(draft.name.removesuffix(checkpoint.DRAFT_SUFFIX)).exists():
            checkpoint.commit(draft, Manifest(*values, entries, arrangement=self.payload.arrangement or ""))

    def end(self, fate: Fate) -> None:
        """The ranks end, and the agent writes down how."""
        self.alive = False
        if fate.saves:
            self.save()
        kind, message = fate.error or ("", "")
        message = message.format(micro_batch=self.payload.micro_batch)  # a smaller one allocates less
        raised = kind and {"type": kind, "message": message, "trace": [], "ts": self._started_s}
        if fate.exit is not None:
            self._record({"state": "ended", "exit": fate.exit, **({"error": raised} if raised else {})})
        launcher_exit = 247 if fate.exit is None else 0 if fate.exit == 85 else fate.exit
        assert self.start is not None
        self._write_outcome(launcher_exit, fate.ended_by, self._started_s, self.start)

    def die(self) -> None:
        """SIGKILL, in the midst of saving."""
        self.alive = False
        if self.payload.train is not None and self.node.rank == 0:
            self._draft()

    def give_way(self) -> None:
        """Ends for a newer generation."""
        self.end(Fate("", frozenset(), ended_by="superseded"))

    def _draft(self) -> Path:
        draft = checkpoint.begin(self._checkpoints, self.payload.generation, self.step)
        (draft / "weights.pt").write_bytes(b"w" * 64)
        return draft

    def _report(self, line: dict[str, object]) -> None:
        spool = _Spool(str(self.paths.metrics))
        spool.write(line)
        os.close(spool.descriptor())

    def _record(self, values: dict[str, object]) -> None:
        """A rank's record; its wrapper writes it in the script's own interpreter."""
        known = {"rank": self.node.rank, "pid": os.getpid(), "host": self.node.name, "started": self._started_s}
        write_atomically(self.paths.rank_record(self.node.rank), json.dumps({**known, **values}))
