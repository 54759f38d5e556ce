"""Kill everything, again and again: no line lost, none doubled."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from sqlalchemy import select

from dscampaign.db import queries, schema
from dscampaign.db.errors import StoreUnreachable
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.waiting import HANGS_S
from dscampaign.tests.support.worlds import World, make_world

LINES = int(os.environ.get("TORTURE_LINES", "8000"))
"""How many lines are written; `make test-all` sets 200000, `make torture` 800000."""

SEED = int(os.environ.get("TORTURE_SEED") or random.randrange(1_000_000))
"""Decides who is killed when; printed, so that what failed can be tried again."""

_GENERATIONS = max(4, LINES // 20_000)
_KILLS = 4  # of drainers, for each kill of the writer
_CRASH_EVERY = 4  # generations
_BITE = 1 << 15  # bytes a transaction: many transactions to be killed in
_EVENT_EVERY = 100
_PAUSE_S = 0.003  # of the writer, at each event
_TIMEOUT_S = 1800 + LINES // 100
_FORK = multiprocessing.get_context("fork")


@dataclass
class Tally:
    """What was done to a store, for the record.

    Attributes:
        lines: that the writers left in full, and that the store was compared with one by one.
    """

    writers: int = 0
    drainers: int = 0
    crashes: int = 0
    lines: int = 0
    started_s: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        killed = f"SIGKILLs: {self.writers} writers, {self.drainers} drainers; {self.crashes} immediate stops"
        took_s = time.monotonic() - self.started_s
        return f"seed {SEED}: {self.lines:,} lines in {took_s:.0f} s; {killed}; 0 lost, 0 doubled"


@pytest.mark.timeout(_TIMEOUT_S)
def test_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/campaign.db"
    Store.open(url, create=True).close()
    print(f"SQLite: {_torture(url, tmp_path, crash=None)}")


@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.postgres
def test_postgres(tmp_path: Path, crashing_postgres: PostgresServer) -> None:
    url = crashing_postgres.new_database()
    upgrade(Store.open(url, check_schema=False))

    def crash() -> None:
        crashing_postgres.stop("immediate")
        crashing_postgres.start()

    print(f"PostgreSQL: {_torture(url, tmp_path, crash)}")


def _torture(url: str, path: Path, crash: Callable[[], None] | None) -> Tally:
    print(f"seed {SEED}")
    rng, tally = random.Random(SEED), Tally()
    world = make_world(Store.open(url), path)
    spools = {1: world.spool(1)}
    drainers = [_start(_drain, url, path) for _ in range(2)]
    try:
        for generation in range(1, _GENERATIONS + 1):
            if generation > 1:
                spools[world.attempt(generation)] = world.spool(generation)
            writer = _start(_write, world.spool(generation), LINES // _GENERATIONS)
            crash_after = rng.randrange(_KILLS) if crash and generation % _CRASH_EVERY == 0 else None
            for kill in range(_KILLS):
                _wait_for_progress(world, spools, writer)
                victim = rng.randrange(2)
                _kill(drainers[victim])
                drainers[victim] = _start(_drain, url, path)
                tally.drainers += 1
                if crash and kill == crash_after:
                    crash()
                    tally.crashes += 1
            _wait(partial(_has_lines, world.spool(generation), LINES // _GENERATIONS))
            _kill(writer)
            tally.writers += 1
    finally:
        for drainer in drainers:
            _kill(drainer)
    for attempt_id, spool in spools.items():
        while not ingest(world.store, MetricSpool(attempt_id, spool)).caught_up:
            pass
    tally.lines = _compare(world, spools)
    return tally


def _compare(world: World, spools: dict[int, Path]) -> int:
    """The spools are the truth: what they say in complete lines is what the store must hold. Returns their number."""
    written = 0
    for attempt_id, spool in spools.items():
        lines = [json.loads(line) for line in spool.read_bytes().split(b"\n")[:-1]]
        written += len(lines)
        metric = schema.step_metric.c
        query = select(metric.step, metric.loss).where(metric.attempt_id == attempt_id).order_by(metric.step)
        with world.store.read() as conn:
            stored = [tuple(row) for row in conn.execute(query)]
            events = [
                event.data["n"]
                for event in queries.events(conn, world.campaign_id)
                if event.attempt_id == attempt_id and event.kind == "script.tick"
            ]
        assert stored == [(line["step"], line["loss"]) for line in lines if "step" in line]
        assert events == [line["n"] for line in lines if "event" in line]
    assert written >= LINES
    assert world.events("spool.corrupt") == []
    return written


def _write(spool: Path, count: int) -> None:
    """The training script: writes about as fast as one drainer reads, so that it is killed in the midst of it."""
    fd = os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step in itertools.count(1):
        if step % _EVENT_EVERY == 0:
            time.sleep(_PAUSE_S)
            os.write(fd, json.dumps({"event": "tick", "n": step}).encode() + b"\n")
        os.write(fd, json.dumps({"step": step, "ts": time.time(), "loss": 1 / step, "mine": 1.0}).encode() + b"\n")
        if step >= 2 * count:
            signal.pause()


def _drain(url: str, path: Path) -> None:
    """A reconciler or an agent: takes what is there, for ever, and survives a store that is away."""
    store = Store.open(url, check_schema=False)  # connects to nothing yet: the server may be away
    while True:
        try:
            with store.read() as conn:
                attempts = [(row.id, row.generation) for row in queries.attempts(conn, 1)]
            for attempt_id, generation in attempts:
                spool = path / f"g{generation:04d}.jsonl"
                while not ingest(store, MetricSpool(attempt_id, spool), max_bytes=_BITE).caught_up:
                    pass
        except StoreUnreachable:
            time.sleep(0.01)


def _start(target: Callable[..., None], *args: object) -> BaseProcess:
    process = _FORK.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def _kill(process: BaseProcess) -> None:
    assert process.is_alive(), "it must not have died of itself"
    process.kill()
    process.join()


def _wait_for_progress(world: World, spools: dict[int, Path], writer: BaseProcess) -> None:
    """Until a drainer has taken something since now, so that each kill comes in the midst of work."""
    before = _drained(world)

    def moved() -> bool:
        behind = sum(spool.stat().st_size for spool in spools.values() if spool.exists()) - before
        assert writer.is_alive()
        return _drained(world) > before or (before > 0 and behind <= 0)

    _wait(moved)


def _drained(world: World) -> int:
    with world.store.read() as conn:
        return sum(row.spool_offset for row in queries.attempts(conn, world.campaign_id))


def _has_lines(spool: Path, count: int) -> bool:
    return spool.exists() and spool.read_bytes().count(b"\n") >= count


def _wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline_s, "nothing moved"
        time.sleep(0.002)
