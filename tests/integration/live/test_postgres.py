"""A live view of a store on PostgreSQL reads what it reads of SQLite."""

from __future__ import annotations

from pathlib import Path

from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.orchestrator.live.model import LiveRun, LiveStore
from dscampaign.tests.support.planted import Planted, Try, plant
from dscampaign.tests.support.postgres import PostgresServer


def test_both_databases_show_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    server = Store.open(postgres.new_database(), check_schema=False)
    upgrade(server)
    views = []
    for store in (server, Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)):
        plant(store, tmp_path, [Planted("a", (0.1,), tries=(Try(0, 60, "oom"), Try(40, 100))), Planted("b", (0.2,))])
        live = LiveStore(store)
        changes = live.runs("sweep")
        assert live.runs("sweep", changes.version).runs == []
        curves = [one.curve for one in live.curves("sweep", ["a", "b"], 30).values()]
        views.append(([LiveRun(*run) for run in changes.runs], curves, [e.text for e in live.events("sweep")]))
        store.close()
    assert views[0] == views[1]
