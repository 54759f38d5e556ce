"""Whether a store stays fast and bounded: rows a second into it empty, full, and after `campaign db prune`.

    python benchmarks/full_store.py [--million-steps 10] [--postgres]

The same spool is drained into an empty store and into the full one in turn; medians, and their ratio. The full store is
filled by copies of one attempt's lines, each the only attempt of a run that ended long ago.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import insert, literal, select, update

from dscampaign.benchmarks.store import LINES, drain, insert_attempts, write_spool
from dscampaign.db import queries, schema
from dscampaign.db.prune import Retention, prune
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.postgres import PostgresServer

ROUNDS: Final = 7
KEEP_EVERY: Final = 10
_SPARE: Final = 2 * ROUNDS + 1
"""Attempts that have nothing yet: those that are measured, and the one that is copied."""


def main() -> None:
    """Prints one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million-steps", type=int, default=10, metavar="N", help="how full the full store is")
    parser.add_argument("--postgres", action="store_true", help="on a private PostgreSQL server instead of SQLite")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spool = write_spool(Path(folder), LINES)
        if not given.postgres:
            empty, full = (Store.open(f"sqlite:///{folder}/{name}.db", create=True) for name in ("empty", "full"))
            _measure("SQLite", empty, full, spool, given.million_steps)
            return
        with PostgresServer() as server:
            empty, full = (_upgraded(Store.open(server.new_database(), check_schema=False)) for _ in range(2))
            _measure("PostgreSQL", empty, full, spool, given.million_steps)


def _measure(name: str, empty: Store, full: Store, spool: Path, millions: int) -> None:
    steps = millions * 1_000_000
    copies = steps // LINES
    of_empty = iter(insert_attempts(empty, _SPARE, str(spool.parent)))
    source, *others = insert_attempts(full, _SPARE + copies, str(spool.parent))
    of_full, old = iter(others[: 2 * ROUNDS]), others[2 * ROUNDS :]
    _fill(full, source, old, spool)
    about = f"{name}, {millions} M steps"
    _print(f"{about}: its size", "GB", _size_gb(full))
    _rates(f"{about}: drain", empty, full, of_empty, of_full, spool)
    began_s = time.perf_counter()
    removed = prune(full, _campaign(full), Retention(KEEP_EVERY, 0.0))
    took_s = time.perf_counter() - began_s
    _print(f"{about}: prune to 1 in {KEEP_EVERY}", "s", took_s)
    _print(f"{about}: removed", "rows/s", removed.rows / took_s)
    _print(f"{about}: its size after prune", "GB", _size_gb(full))
    _rates(f"{about}: drain after prune", empty, full, of_empty, of_full, spool)
    _print(f"{about}: its size after that", "GB", _size_gb(full))


def _fill(store: Store, source: int, old: list[int], spool: Path) -> None:
    """Gives each of these attempts the lines of the first, and lets it have ended long ago."""
    drain(store, source, spool)
    row = schema.step_metric.c
    names = list(row.keys())
    with store.read() as conn:
        run_of = dict(conn.execute(select(schema.attempt.c.id, schema.attempt.c.run_id)).all())
    for attempt_id in old:
        copied = [literal(attempt_id) if name == "attempt_id" else row[name] for name in names]
        with store.write() as conn:
            lines = select(*copied).where(row.attempt_id == source)
            conn.execute(insert(schema.step_metric).from_select(names, lines))
            ended = update(schema.attempt).where(schema.attempt.c.id == attempt_id)
            conn.execute(ended.values(state=AttemptState.COMPLETED, ended_s=1.0))
            queries.update_run(conn, run_of[attempt_id], state=RunState.COMPLETED)


def _rates(what: str, empty: Store, full: Store, of_empty: Iterator[int], of_full: Iterator[int], spool: Path) -> None:
    """Rows a second into both, in turn, each beginning as often as the other."""
    rates: dict[str, list[float]] = {"empty": [], "full": []}
    places = {"empty": (empty, of_empty), "full": (full, of_full)}
    for turn in range(ROUNDS):
        for which in ("empty", "full") if turn % 2 else ("full", "empty"):
            store, attempts = places[which]
            attempt_id = next(attempts)
            began_s = time.perf_counter()
            drain(store, attempt_id, spool)
            rates[which].append(LINES / (time.perf_counter() - began_s))
    medians = {which: statistics.median(some) for which, some in rates.items()}
    for which, rate in medians.items():
        _print(f"{what}, {which}", "rows/s", rate)
    _print(f"{what}, full by empty", "", medians["full"] / medians["empty"])


def _campaign(store: Store) -> int:
    with store.read() as conn:
        [campaign] = queries.list_campaigns(conn)
    return campaign.id


def _size_gb(store: Store) -> float:
    with store.read() as conn:
        if store.is_sqlite:
            sizes = (conn.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size"))
            pages, page = sizes
            return float(pages * page) / 1e9
        return float(conn.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()) / 1e9


def _upgraded(store: Store) -> Store:
    upgrade(store)
    return store


def _print(what: str, unit: str, value: float) -> None:
    digits = 1 if value >= 100 else 3
    print(f"{what:55} {value:12,.{digits}f} {unit}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
