"""A small campaign to test with."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from dscampaign.db import bulk, metrics, queries
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import IngestResult, ingest
from dscampaign.db.records import EventRow, MetricRow, NewAttempt, NewRun, RunLatest
from dscampaign.db.store import Store

Line = str | bytes | Mapping[str, object]


@dataclass
class World:
    """One run and its attempts, each with a spool."""

    store: Store
    dir: Path
    campaign_id: int
    run_id: int

    def attempt(self, generation: int, config_hash: str = "h1") -> int:
        with self.store.write() as conn:
            return bulk.insert_attempts(conn, [new_attempt(self.run_id, generation, config_hash)])[0].id

    def spool(self, generation: int = 1) -> Path:
        return self.dir / f"g{generation:04d}.jsonl"

    def write(self, *lines: Line, generation: int = 1) -> None:
        """Appends lines; bytes go as they are, without a newline."""
        with self.spool(generation).open("ab") as file:
            for line in lines:
                file.write(as_bytes(line))

    def ingest(self, generation: int = 1, **options: int) -> IngestResult:
        with self.store.read() as conn:
            found = {row.generation: row.id for row in queries.attempts(conn, self.campaign_id, self.run_id)}
        return ingest(self.store, MetricSpool(found[generation], self.spool(generation)), **options)

    def metrics(self) -> list[MetricRow]:
        with self.store.read() as conn:
            return list(metrics.metrics(conn, self.run_id))

    def latest(self) -> RunLatest:
        with self.store.read() as conn:
            return metrics.latest(conn, self.campaign_id)[self.run_id]

    def events(self, kind: str) -> list[EventRow]:
        with self.store.read() as conn:
            return [event for event in queries.events(conn, self.campaign_id) if event.kind == kind]


def make_world(store: Store, path: Path) -> World:
    """Makes a campaign with one run and its first attempt."""
    with store.write() as conn:
        campaign_id = new_campaign(conn)
        bulk.insert_runs(conn, campaign_id, [NewRun("run", {"lr": 1}, {"a": 1}, "h1", 0)])
        run_id = queries.runs(conn, campaign_id)[0].id
    world = World(store, path, campaign_id, run_id)
    world.attempt(1)
    return world


def new_campaign(conn: Connection, name: str = "sweep") -> int:
    return queries.insert_campaign(conn, name=name, spec="x: 1", spec_hash="s", dir="d", executor="slurm")


def new_attempt(run_id: int, generation: int = 1, config_hash: str = "h1") -> NewAttempt:
    return NewAttempt(
        run_id=run_id,
        generation=generation,
        token="token",
        config_hash=config_hash,
        micro_batch=4,
        accumulation=2,
        world_size=2,
        nodes=1,
        executor="slurm",
        spool_path="metrics.jsonl",
    )


def as_bytes(line: Line) -> bytes:
    if isinstance(line, bytes):
        return line
    return ((line if isinstance(line, str) else json.dumps(line)) + "\n").encode()
