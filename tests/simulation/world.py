"""One campaign in a store and a folder of its own, two processes that reconcile it, and a cluster."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, select

from dscampaign.db import queries
from dscampaign.db.records import CampaignRow, RunRow
from dscampaign.db.schema import attempt, lease, metadata
from dscampaign.db.states import RETRYABLE_RUN, WANTED, AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.files.private_files import open_regular
from dscampaign.jobs.agent import agent as agent_module
from dscampaign.jobs.agent import shared_folder, start
from dscampaign.jobs.shared.job_array import read_array
from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.reconcile import lease as lease_module
from dscampaign.orchestrator.reconcile.lease import LEASE_TTL_S, FencedWriter, LeaseHeld, LeaseHolder
from dscampaign.orchestrator.reconcile.loop import Pass, Reconciler
from dscampaign.tests.simulation.accidents import Effects
from dscampaign.tests.simulation.clock import Clock
from dscampaign.tests.simulation.nasty_slurm import NastySlurm
from dscampaign.tests.simulation.promises import Promises
from dscampaign.tests.support.earlier_store import restore, saved
from dscampaign.tests.support.spec_files import load_runs

DEPTHS = (1, 2, 3)
TARGET = 5
LOOKS_EVERY_S = 30.0
_INTENTS = select(attempt.c.id).where(attempt.c.state == AttemptState.INTENT)
_ANOTHERS = select(lease.c.expires_s).where(lease.c.holder != bindparam("mine"))
_EPOCH = select(lease.c.epoch).where(lease.c.name == bindparam("name"))
NO_PROCESS = 2**22 + 1
"""A process number that Linux never gives."""

SEARCH: dict[str, Any] = {
    "sampler": "random",
    "trials": 4,
    "parallel": 2,
    "halving": {"from": 2, "to": TARGET, "factor": 2},
    "confirm": {"top": 1, "repeats": 1},
}


def make_spec(
    *, builtin: bool, nodes: int, runs_per_job: int, lanes: int, retry: dict[str, int], search: bool = False
) -> dict[str, Any]:
    """A spec of as many runs as DEPTHS, or of a search with halving."""
    own = {"command": ["train.py", "{depth}"], "train": {"steps": TARGET}}
    trained = {
        "train": {
            "model": {"model_type": "gpt2", "n_layer": 1},
            "tokenizer": "bytes",
            "dataset": {"path": "text.txt"},
            "global_batch": 8,
            "micro_batch": 4 // nodes,
            "steps": TARGET,
            "checkpoint_every": 2,
        }
    }
    slurm: dict[str, Any] = {"gpus_per_node": 1, "nodes": nodes, "mem": "1G", "time": "5", "runs_per_job": runs_per_job}
    if nodes == 1 and runs_per_job > 1:
        slurm |= {"gpus_per_node": lanes, "gpus_per_run": 1}
    return {
        "name": "c",
        "slurm": slurm,
        "ranks_per_node": 1,
        "retry": {"max_backoff_s": 600, **retry},
        **(_searching(trained if builtin else own) if search else trained if builtin else own),
    }


def _searching(spec: dict[str, Any]) -> dict[str, Any]:
    axis = "depth" if "command" in spec else "train.seed"
    return {**spec, "search": {"parameters": {axis: {"int": [1, 1000]}}, **SEARCH}}


def in_memory() -> TemporaryDirectory[str]:
    """A folder that is in no disk's way, where there is such a place."""
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if memory.is_dir() else None)


class World:
    """Everything that a test plays with.

    Args:
        store: a SQLite database, which is emptied first. One for all worlds: what SQLAlchemy learns of a statement is
            worth keeping. All processes of a world use it, one after another.
        clock: what the store's time is made of.
        spec: as `make_spec` makes it.
        accounting: whether Slurm remembers jobs for ever.
        error_s: how far Slurm's clock is ahead of the database's.
        nodes_error_s: how far the nodes' clocks are.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        spec: dict[str, Any],
        *,
        accounting: bool,
        error_s: float,
        nodes_error_s: float,
    ) -> None:
        self._folder = in_memory()
        self.dir = Path(self._folder.name)
        self._patch = pytest.MonkeyPatch()
        self._spec, self._submissions = spec, dict[tuple[int, ...], Submission]()
        self._axis = "depth" if "command" in spec else "train.seed"
        self.store, self.clock = store, clock
        self.clock.begin(error_s, nodes_error_s)
        with store.write() as conn:
            for table in reversed(metadata.sorted_tables):
                conn.execute(table.delete())
        self.effects = Effects(self._patch)
        self.cluster = NastySlurm(self.clock, self.effects, accounting)
        self.promises = Promises(self.cluster)
        for module in (agent_module, start, shared_folder, lease_module):
            self._patch.setattr(module, "time", self.clock.as_module())
        self._patch.setattr(start, "free_port", lambda: 29500)
        self._patch.setattr(agent_module, "NodeFacts", lambda *_: SimpleNamespace(end=dict))
        self._patch.setattr(campaigns, "git", lambda *_: "")
        self._patch.setattr(lease_module, "_require_schema", lambda _: None)  # nobody upgrades this store
        self._patch.setattr(FencedWriter, "write", _watched(FencedWriter.write))
        self._born = 0
        self.campaign = self.wish_for(DEPTHS)
        self.leaders = [self._make_leader(), self._make_leader()]

    def close(self) -> None:
        """Removes everything."""
        self._patch.undo()
        self._folder.cleanup()

    @property
    def searches(self) -> bool:
        """Whether its runs are the trials of a search."""
        return "search" in self._spec

    # -- reconcilers ---------------------------------------------------------------------------------------------

    def run_pass(self, which: int) -> Pass:
        """One pass of one of the two, some time after the last."""
        self.clock.now_s += 10
        return self.leaders[which].run_pass()

    def takes_over(self, which: int) -> None:
        """The other one has stopped for longer than its lease: this one works in its place."""
        self.clock.now_s += LEASE_TTL_S + 1
        self.leaders[which].run_pass()

    @contextmanager
    def slowed(self, other: int, effect_s: float) -> Iterator[None]:
        """A pass whose every effect takes so long, while the other process tries passes of its own.

        Whatever that one finds, it may not touch what the slow one submits.
        """
        others, looked_s = self._intents(), self.clock.now_s

        def looks_in() -> None:
            nonlocal looked_s
            self.clock.now_s += effect_s
            if self.clock.now_s < looked_s + LOOKS_EVERY_S:
                return
            looked_s = self.clock.now_s
            if self._finds_it_held(other):
                return
            new = self._intents() - others
            with suppress(LeaseHeld):
                self.leaders[other].run_pass()
            assert new <= self._intents(), "what a live reconciler submits was revoked"
            others.update(self._intents() - new)

        with self.effects.each_taking(looks_in):
            yield

    def save_store(self) -> None:
        """Somebody dumps the store."""
        self._dump = saved(self.store)

    def restore_store(self) -> None:
        """Somebody restores that dump, while processes, folder and cluster go on; the user submits the spec again."""
        restore(self.store, self._dump)
        arrays = CampaignPaths(self.dir, "c").batches.glob("*/payloads.jsonl")
        raw = (one for array in arrays for one in read_array(open_regular(array), array))
        self.promises.forget((one["run"], one["generation"]) for one in raw)
        self.wish_for(self._wished)

    def _finds_it_held(self, which: int) -> bool:
        """Whether a pass would end at the lease: most do that look in, and a whole one costs ten times as much."""
        with self.store.read() as conn:
            ends_s = conn.execute(_ANOTHERS, {"mine": str(self.leaders[which]._holder)}).scalar()
        return ends_s is not None and self.clock.now_s < ends_s <= self.clock.now_s + 2 * LEASE_TTL_S

    def _intents(self) -> set[int]:
        with self.store.read() as conn:
            return set(conn.execute(_INTENTS).scalars())

    def bury(self, which: int, *, on_this_host: bool) -> None:
        """The process is dead; another one begins.

        Args:
            on_this_host: the next one can see that it is dead; else its lease has to run out.
        """
        died = self.leaders[which]
        if on_this_host:
            dead = f"{socket.gethostname()}:{NO_PROCESS}:x"
            with self.store.write() as conn:
                conn.execute(lease.update().where(lease.c.holder == str(died._holder)).values(holder=dead))
        self.leaders[which] = self._make_leader()

    # -- the user ------------------------------------------------------------------------------------------------

    def wish_for(self, depths: Collection[int]) -> CampaignRow:
        """Submits a spec of these runs; the others are no longer wanted."""
        self._wished = frozenset(depths)
        found = self._submission(tuple(sorted(depths)))
        if hasattr(self, "campaign") and not self.searches:
            named = {run.name for run in found.runs}
            self.promises.unwanted |= {run.name for run in self.runs() if run.name not in named}
        return campaigns.record(self.store, found)

    def cancel(self, run: RunRow) -> None:
        """The user cancels a run."""
        campaigns.cancel(self.store, self.campaign, [run.name])
        self.promises.unwanted.add(run.name)

    def retry(self, run: RunRow) -> None:
        """The user has a run tried again."""
        campaigns.retry(self.store, self.campaign, [run.name])

    def cancellable(self) -> list[RunRow]:
        """Runs that are wanted and have not completed: what has failed could still be tried again."""
        return [run for run in self.runs() if run.desired in WANTED and run.state is not RunState.COMPLETED]

    def retryable(self) -> list[RunRow]:
        """Runs that `campaign retry` takes."""
        return [run for run in self.runs() if run.state in RETRYABLE_RUN]

    def runs(self) -> list[RunRow]:
        """The runs as stored."""
        with self.store.read() as conn:
            return queries.runs(conn, self.campaign.id)

    # -- what must hold ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every promise of this moment."""
        with self.store.read() as conn:
            self.promises.check(conn, self.campaign.id)

    def check_end(self) -> None:
        """Every promise of a settled campaign."""
        with self.store.read() as conn:
            self.promises.check(conn, self.campaign.id)
            self.promises.check_end(conn, self.campaign.id)

    # -- helpers -------------------------------------------------------------------------------------------------

    def _make_leader(self) -> Reconciler:
        leader = Reconciler(self.store, self.campaign, self.cluster, _figures)
        self._born += 1
        leader._holder = LeaseHolder(
            "elsewhere", str(self._born), "x"
        )  # another host, whose processes cannot be seen from here
        return leader

    def _submission(self, depths: tuple[int, ...]) -> Submission:
        if depths not in self._submissions:
            path = self.dir / "spec.yaml"
            matrix = {} if self.searches else {"matrix": {self._axis: list(depths)}}
            path.write_text(json.dumps({**self._spec, **matrix}))
            for name in ("train.py", "text.txt"):
                (self.dir / name).write_text("text")
            spec, runs = load_runs(path)
            self._submissions[depths] = Submission(spec, path.read_text(), runs, self.dir, path)
        return self._submissions[depths]


def _figures(store: Store, campaign: CampaignRow, names: Collection[str]) -> dict[str, dict[str, float | None]]:
    """A loss that depends on the run alone."""
    with store.read() as conn:
        runs = [run for run in queries.runs(conn, campaign.id) if run.name in names]
    return {run.name: {"final_loss": float(next(iter(run.params.values())))} for run in runs}


def _watched(real: Callable[[FencedWriter], Any]) -> Callable[[FencedWriter], Any]:
    """Every write under a lease ends while that lease still is its writer's."""

    @contextmanager
    def write(authority: FencedWriter) -> Iterator[Connection]:
        with real(authority) as conn:
            yield conn
            assert conn.execute(_EPOCH, {"name": authority.lease}).scalar() == authority.epoch, (
                "a write without the lease"
            )

    return write
