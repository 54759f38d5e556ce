"""PostgreSQL behind a pooler in transaction mode: each transaction may meet another connection of the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db import bulk, metrics, queries
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.pgbouncer import PgBouncer
from dscampaign.tests.support.postgres import PostgresServer

AGENTS, PUSHES, CONNECTIONS = 4, 10, 2
LINES = 250
"""Of a push: so many go by COPY through a private table."""


@pytest.fixture
def pooled(postgres: PostgresServer) -> Iterator[str]:
    """The address of an upgraded database behind a pooler with fewer connections than there will be agents."""
    with PgBouncer(postgres.new_database(), CONNECTIONS) as pooler:
        store = Store.open(pooler.url, check_schema=False)
        upgrade(store)
        store.close()
        yield pooler.url


def test_agents_push_through_a_pooler(pooled: str, tmp_path: Path) -> None:
    store = Store.open(pooled)
    with store.write() as conn:
        campaign = queries.insert_campaign(conn, name="c", spec="", spec_hash="", dir=str(tmp_path), executor="local")
        bulk.insert_runs(conn, campaign, [NewRun(f"r{n}", {}, {}, "h", n) for n in range(AGENTS)])
        runs = queries.runs(conn, campaign)
        new = [NewAttempt(run.id, 1, "t", "h", 1, 1, 1, 1, "local", "metrics.jsonl") for run in runs]
        attempts = [attempt.id for attempt in bulk.insert_attempts(conn, new)]
    failed: list[Exception] = []

    def push_all(attempt: int) -> None:
        spool = tmp_path / f"{attempt}.jsonl"
        try:
            own = Store.open(pooled)
            for push in range(PUSHES):
                steps = range(push * LINES + 1, (push + 1) * LINES + 1)
                with spool.open("a") as file:
                    file.writelines(
                        json.dumps({"step": step, "ts": 1.0, "loss": 1.0, "own": 2.0}) + "\n" for step in steps
                    )
                with own.write() as conn:
                    queries.beat(conn, attempt)
                ingest(own, MetricSpool(attempt, spool))
            own.close()
        except Exception as exc:  # noqa: BLE001 - shown below
            failed.append(exc)

    threads = [threading.Thread(target=push_all, args=[attempt]) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with store.read() as conn:
        for run in runs:
            assert [row.step for row in metrics.metrics(conn, run.id)] == list(range(1, PUSHES * LINES + 1))
    store.close()
