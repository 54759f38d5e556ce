"""What the store costs: rows a second into it, milliseconds for a status page. Medians, on SQLite and PostgreSQL.

    python benchmarks/store.py [--postgres postgresql://USER@HOST/EMPTY_DATABASE]

Without an address a private PostgreSQL server is started, where this machine has one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dscampaign.db import bulk, metrics, queries
from dscampaign.db.ingest.lines import parse
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.postgres import PostgresServer

LINES = 100_000
REPEATS = 5
RUNS = 10_000


def main() -> None:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", metavar="URL", help="an empty database to measure in")
    url = parser.parse_args().postgres
    with tempfile.TemporaryDirectory() as folder:
        spool = write_spool(Path(folder), LINES)
        chunk = spool.read_bytes()
        _print("json.loads of the lines", "lines/s", LINES / _median(lambda: _loads(chunk)))
        _print("reading the spool", "lines/s", LINES / _median(lambda: parse(chunk, 0)))
        _measure("SQLite", Store.open(f"sqlite:///{folder}/campaign.db", create=True), spool)
        with _postgres(url) as address:
            if address:
                store = Store.open(address, check_schema=False)
                upgrade(store)
                _measure("PostgreSQL", store, spool)
                store.close()


def _measure(name: str, store: Store, spool: Path) -> None:
    pending = iter(insert_attempts(store, 1000, str(spool.parent), RUNS))
    with store.read() as conn:
        [campaign_id] = [row.id for row in queries.list_campaigns(conn)]
    _print(f"{name}: drain, whole spool", "rows/s", LINES / _median(lambda: drain(store, next(pending), spool)))
    small = spool.with_name("small.jsonl")
    small.write_bytes(b"".join(spool.read_bytes().splitlines(keepends=True)[:50]))
    _print(f"{name}: drain, 50 lines", "ms", 1000 * _median(lambda: drain(store, next(pending), small), 50))
    with store.read() as conn:
        _print(f"{name}: status of {RUNS} runs", "ms", 1000 * _median(lambda: queries.status(conn, campaign_id)))
        _print(f"{name}: metrics of a run, {LINES} steps", "ms", 1000 * _median(lambda: list(metrics.metrics(conn, 1))))


def insert_attempts(store: Store, count: int, folder: str, runs: int = 0) -> list[int]:
    """Ids of the attempts of the first runs of a new campaign, which has as many runs or more."""
    with store.write() as conn:
        campaign_id = queries.insert_campaign(conn, name="bench", spec="", spec_hash="", dir=folder, executor="local")
        config = {"train": {"steps": 100, "lr": 1e-4}}
        new = [NewRun(f"r{n}", {"n": n}, config, "h", n) for n in range(max(runs, count))]
        bulk.insert_runs(conn, campaign_id, new)
        attempts = [_attempt(run.id) for run in queries.runs(conn, campaign_id)[:count]]
        return [attempt.id for attempt in bulk.insert_attempts(conn, attempts)]


def _attempt(run_id: int) -> NewAttempt:
    return NewAttempt(
        run_id=run_id,
        generation=1,
        token="t",  # noqa: S106
        config_hash="h",
        micro_batch=1,
        accumulation=1,
        world_size=1,
        nodes=1,
        executor="local",
        spool_path="metrics.jsonl",
    )


def write_spool(folder: Path, lines: int) -> Path:
    """A spool as the trainer writes it: eight figures a step."""
    spool = folder / "metrics.jsonl"
    figures = {"lr": 1.23e-4, "grad_norm": 0.51234, "step_time": 0.1234567, "tokens_per_s": 123456.7}
    figures |= {"mem_allocated": 12.345, "mem_reserved": 15.678}
    with spool.open("w", encoding="utf-8") as file:
        for step in range(1, lines + 1):
            line = {"step": step, "ts": 1732500000.123456 + step, "loss": 3 + 1 / step, **figures}
            file.write(json.dumps(line) + "\n")
    return spool


def drain(store: Store, attempt_id: int, spool: Path) -> None:
    """Takes all of a spool into the store."""
    while not ingest(store, MetricSpool(attempt_id, spool)).caught_up:
        pass


def _loads(chunk: bytes) -> None:
    for line in chunk.splitlines():
        json.loads(line)


def _median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    times_s = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


@contextmanager
def _postgres(url: str | None) -> Iterator[str | None]:
    if url:
        yield url
        return
    try:
        server = PostgresServer()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        yield None
        return
    with server:
        yield server.new_database()


def _print(what: str, unit: str, value: float) -> None:
    print(f"{what:45} {value:12,.1f} {unit}", flush=True)


if __name__ == "__main__":
    main()
