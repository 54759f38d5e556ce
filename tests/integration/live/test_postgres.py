"""A live view of a store on PostgreSQL reads what it reads of SQLite."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dscampaign.db import campaigns, queries
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.orchestrator.campaign.activity import event_text
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.live.model import LiveStore
from dscampaign.orchestrator.reconcile.forecast import read_history
from dscampaign.tests.support.planted import Planted, Try, plant
from dscampaign.tests.support.postgres import PostgresServer


def test_both_databases_show_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    server = Store.open(postgres.new_database(), check_schema=False)
    upgrade(server)
    views: list[object] = []
    for store in (server, Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)):
        plant(store, tmp_path, [Planted("a", (0.1,), tries=(Try(0, 60, "oom"), Try(40, 100))), Planted("b", (0.2,))])
        live = LiveStore(store)
        changes = live.runs("sweep")
        assert live.runs("sweep", changes.version).runs == []
        events = [(event_text(event), run) for event, run in live.events("sweep")]
        views.append((changes.runs, live.curves("sweep", ["a", "b"], 30), events))
        store.close()
    assert views[0] == views[1]


def test_both_databases_forecast_and_count_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    server = Store.open(postgres.new_database(), check_schema=False)
    upgrade(server)
    answers = []
    for store in (server, Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)):
        conditions = [Planted("a", (0.1, 0.1), tries=(Try(0, 60, "oom"), Try(40, 100))), Planted("b", (0.2,))]
        campaign = plant(store, tmp_path, conditions)
        status = read_status(store, campaign)
        with store.read() as conn:
            runs = queries.runs(conn, campaign.id)
            history = read_history(conn, campaign.id)
            likely = [history.forecast(run.params, partial(getattr, run, "config"), 100) for run in runs]
            earlier = campaigns.paces(conn, None, {row for row, _ in campaigns.completed_elsewhere(conn, None)})
            hours = {owner: dict(used) for owner, used in campaigns.rank_seconds(conn, lambda _: 1e10).items()}
            totals = campaigns.campaign_totals(conn, lambda _: 1e10)[campaign.id]._replace(active_s=0.0)
            asked = campaigns.asked(conn, campaign.id)
        times = [(pace.run_id, pace.params, pace.half_step, pace.half_s) for pace in earlier]
        answers.append(
            (likely, times, hours, totals, list(asked.values()), status.left, status.rules, len(status.runs))
        )
        store.close()
    assert answers[0] == answers[1]
    assert any(answers[0][0])
