"""A campaign in a store of its own, with a run in each interesting state, to point the command line at."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dscampaign.db import bulk, queries
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import AttemptRow, NewAttempt, NewRun
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder

CONFIG: dict[str, Any] = {
    "executor": "slurm",
    "slurm": {"nodes": 2},
    "ranks_per_node": 4,
    "train": {"global_batch": 64, "micro_batch": 8},
}


@dataclass(frozen=True)
class World:
    """The campaign `sweep`."""

    store: Store
    dir: Path
    campaign_id: int

    def attempt_paths(self, run: str, generation: int = 1) -> AttemptPaths:
        return CampaignPaths(self.dir, "sweep").run(run).attempt(generation)

    def run_id(self, name: str) -> int:
        with self.store.read() as conn:
            run = queries.run_by_name(conn, self.campaign_id, name)
        assert run is not None
        return run.id

    def attempt(self, run: str, generation: int = 1, *, micro_batch: int = 8, lines: list[dict[str, Any]]) -> int:
        """Adds an attempt that reported these lines."""
        paths = self.attempt_paths(run, generation)
        paths.logs.mkdir(parents=True)
        paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        new = NewAttempt(
            run_id=self.run_id(run),
            generation=generation,
            token=f"t{generation}",
            config_hash=run,
            micro_batch=micro_batch,
            accumulation=64 // (micro_batch * 8),
            world_size=8,
            nodes=2,
            executor="slurm",
            spool_path=str(paths.metrics),
            array_index=0,
            start_step=0,
        )
        with self.store.write() as conn:
            attempt_id = bulk.insert_attempts(conn, [new])[0].id
        ingest(self.store, MetricSpool(attempt_id, paths.metrics))
        return attempt_id

    def attempts_of(self, run: str) -> list[AttemptRow]:
        with self.store.read() as conn:
            return queries.attempts(conn, self.campaign_id, self.run_id(run))

    def set_attempt(self, attempt_id: int, **values: Any) -> None:
        with self.store.write() as conn:
            queries.update_attempt(conn, attempt_id, **values)

    def set_run(self, name: str, **values: Any) -> None:
        with self.store.write() as conn:
            queries.update_run(conn, self.run_id(name), **values)


def make_world(path: Path, **params: float) -> World:
    """Four runs: `done`, `small` (its micro-batch was reduced), `bad` (failed) and `new` (not yet submitted)."""
    folder = path / "campaign"
    store = Store.open(f"sqlite:///{folder}/campaign.db", create=True)
    with store.write() as conn:
        campaign_id = queries.insert_campaign(
            conn,
            name="sweep",
            spec="name: sweep\n",
            spec_hash="h",
            dir=str(folder),
            executor="slurm",
            provenance={"version": "0", "spec": "/specs/sweep.yaml", "git": "abc123"},
        )
        names = ("done", "small", "bad", "new")
        runs = [NewRun(name, params, CONFIG, name, i, target_step=3) for i, name in enumerate(names)]
        bulk.insert_runs(conn, campaign_id, runs)
    world = World(store, folder, campaign_id)
    _complete(world)
    _reduce(world)
    _fail(world)
    with store.read() as conn:
        CampaignFolder(queries.list_campaigns(conn)[0]).complete()
    return world


def _complete(world: World) -> None:
    lines = [{"step": step, "ts": 100.0 + step, "loss": 3.0 / step, "tokens_per_s": 48231.0} for step in (1, 2, 3)]
    attempt = world.attempt("done", lines=lines)
    ended = {"started_s": 100.0, "ended_s": 160.0, "failure_class": "completed"}
    world.set_attempt(attempt, state=AttemptState.COMPLETED, job_id="7_0", **ended)
    world.set_run("done", state=RunState.COMPLETED)


def _reduce(world: World) -> None:
    first = world.attempt("small", lines=[])
    world.set_attempt(first, state=AttemptState.FAILED, failure_class="oom", ended_s=200.0, job_id="7_1")
    second = world.attempt("small", 2, micro_batch=4, lines=[{"step": 1, "ts": 210.0, "loss": 2.5, "my_figure": 1.5}])
    world.set_attempt(second, state=AttemptState.RUNNING, started_s=205.0, job_id="8_0")
    world.set_run("small", state=RunState.RUNNING)


def _fail(world: World) -> None:
    attempt = world.attempt("bad", lines=[{"step": 1, "ts": 100.0, "loss": float("nan")}])
    line = {"file": "launcher-0.log", "number": 17, "text": "KeyError: \x1b[31m'x'[bold]"}
    node = {"host": "n1", "launcher_exit": 247, "rank_exits": {"0": None, "3": -9}}
    proof = {"reason": "KeyError: 'x'[bold]", "hint": "look at x", "rule": "script-error", "line": line}
    evidence = {**proof, "sure": "unsure", "nodes": [node]}
    ended = {"started_s": 100.0, "ended_s": 130.0, "failure_class": "deterministic", "evidence": evidence}
    world.set_attempt(attempt, state=AttemptState.FAILED, job_id="7_2", **ended)
    world.set_run("bad", state=RunState.FAILED, reason="KeyError: 'x'[bold] · look at x")
    with world.store.write() as conn:
        queries.add_event(
            conn, world.campaign_id, "ended", "attempt 1: deterministic", run_id=world.run_id("bad"), attempt_id=attempt
        )
