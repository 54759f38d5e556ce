"""What a live view reads: only what changed, thinned curves, the figures and texts of `campaign status`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from dscampaign.db import queries, schema
from dscampaign.db.errors import StoreReadOnly
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.activity import event_text
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.live.documents import verdict_document
from dscampaign.orchestrator.live.model import LiveStore
from dscampaign.orchestrator.pages.rows import FIGURES, OVERVIEW, ShownRun
from dscampaign.tests.support.planted import Planted, Try, plant


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)
    yield opened
    opened.close()


def _zero(stage: int, **more: object) -> Planted:
    planted = {"params": {"zero_stage": stage}, "train": {"zero_stage": stage}, "step_s": (0.1, 0.1), **more}
    return Planted(f"zero_stage-{stage}", **planted)  # type: ignore[arg-type]


def _by_name(runs: list[ShownRun]) -> dict[str, ShownRun]:
    return {row.name: row for row in runs}


def _change(store: Store, campaign: CampaignRow, name: str, **values: Any) -> None:
    with store.write() as conn:
        run = queries.run_by_name(conn, campaign.id, name)
        assert run
        queries.update_run(conn, run.id, **values)


def test_a_follow_up_returns_only_runs_that_changed(store: Store, tmp_path: Path) -> None:
    campaign = plant(store, tmp_path, [_zero(0), _zero(1)])
    live = LiveStore(store)
    first = live.runs("sweep")
    assert first.whole
    assert [run.name for run in first.runs] == ["zero_stage-0", "zero_stage-0-r1", "zero_stage-1", "zero_stage-1-r1"]
    assert live.runs("sweep", first.version).runs == []
    _change(store, campaign, "zero_stage-1", state=RunState.FAILED, reason="loss is not\na number")
    then = live.runs("sweep", first.version)
    assert not then.whole
    assert [(row.name, row.run.state, row.why) for row in then.runs] == [
        ("zero_stage-1", "failed", "loss is not a number")
    ]
    assert live.runs("sweep", then.version).runs == []
    assert LiveStore(store).runs("sweep", then.version).whole
    with store.write() as conn:
        conn.execute(update(schema.run_latest).values(loss=None, nonfinite=1))
    _change(store, campaign, "zero_stage-0", state=RunState.RUNNING)
    diverged = _by_name(live.runs("sweep", then.version).runs)["zero_stage-0"]
    assert math.isnan(diverged.run.loss or 0.0)


def test_a_campaign_with_more_runs_is_sent_whole(store: Store, tmp_path: Path) -> None:
    campaign = plant(store, tmp_path, [_zero(0)])
    live = LiveStore(store)
    first = live.runs(None)
    plant_more = plant(store, tmp_path, [_zero(3)], "other")
    with store.write() as conn:
        conn.execute(
            update(schema.run).where(schema.run.c.campaign_id == plant_more.id).values(campaign_id=campaign.id)
        )
    assert live.runs("sweep", first.version).whole
    with pytest.raises(UserError):
        live.runs("absent")


def test_rows_have_titles_figures_and_reasons(store: Store, tmp_path: Path) -> None:
    waiting = _zero(3, tries=(), state=RunState.PENDING, step_s=(0.1,))
    campaign = plant(store, tmp_path, [_zero(0, held_out=(3.0, 3.1)), waiting])
    with store.write() as conn:
        queries.update_campaign(conn, campaign.id, limits={"running": 0})
    live = LiveStore(store)
    runs = _by_name(live.runs("sweep").runs)
    repeat, pending = runs["zero_stage-0-r1"], runs["zero_stage-3"]
    texts = {name: shown.text(repeat) for name, shown in FIGURES.items()}
    assert (repeat.title, repeat.run.repeat, repeat.run.state, repeat.share) == ("zero_stage-0", 1, "completed", 1.0)
    assert (texts["step"], texts["GPUs"], texts["memory"], texts["tries"]) == ("100/100", "2", "10.0 GB", "1")
    assert (pending.run.generation, pending.gpus, pending.run.loss) == (0, None, None)
    assert pending.why == "waits for its turn, limits.running = 0"
    [listed] = live.campaigns()
    assert (listed.name, OVERVIEW["states"](listed), listed.settled) == ("sweep", "1 pending, 2 completed", False)
    _change(store, campaign, "zero_stage-3", state=RunState.COMPLETED)
    assert live.campaigns()[0].settled
    with store.write() as conn:
        queries.update_campaign(conn, campaign.id, provenance={**campaign.provenance, "search": {"open": True}})
    assert not live.campaigns()[0].settled  # trials are to come


def test_curves_are_thinned_and_go_on_where_they_ended(store: Store, tmp_path: Path) -> None:
    again = _zero(0, step_s=(0.1,), tries=(Try(0, 60, "oom"), Try(40, 100)), state=RunState.RUNNING)
    campaign = plant(store, tmp_path, [again, _zero(3, tries=(), step_s=(0.1,), state=RunState.PENDING)])
    live = LiveStore(store)
    names = ["zero_stage-0", "zero_stage-3"]
    [whole] = live.curves("sweep", names, 30).values()
    assert whole.width == 4
    assert whole.steps == [*range(4, 101, 4)]
    assert all(value and value > 0 for value in (*whole.loss, *whole.tokens_per_s))
    with store.write() as conn:
        attempt = queries.attempts(conn, campaign.id)[-1]
        row = {"attempt_id": attempt.id, "step": 101, "ts_s": 0.0, "loss": None, "tokens_per_s": 5.0, "nonfinite": 1}
        conn.execute(schema.step_metric.insert().values(row))
        conn.execute(update(schema.run_latest).values(step=101))
    later = live.curves("sweep", names, 30)
    assert later == LiveStore(store).curves("sweep", names, 30)
    assert (later["zero_stage-0"].steps, later["zero_stage-0"].loss[-1]) == ([*range(4, 101, 4), 101], None)


def test_events_have_the_names_of_runs(store: Store, tmp_path: Path) -> None:
    campaign = plant(store, tmp_path, [_zero(0)])
    live = LiveStore(store)
    seen = live.events("sweep")
    assert {run for _, run in seen} == {"zero_stage-0", "zero_stage-0-r1"}
    with store.write() as conn:
        queries.add_event(conn, campaign.id, "submitted", "3 jobs\x1b[2J", data={})
    [event] = live.events("sweep", seen[-1][0].id)
    assert (event[1], event[0].kind, event_text(event[0])) == ("", "submitted", "3 jobs")


def test_the_verdict_is_the_sentence_of_recommend_until_a_run_changes(store: Store, tmp_path: Path) -> None:
    campaign = plant(store, tmp_path, [_zero(0), _zero(1, step_s=(0.05, 0.05))])
    live = LiveStore(store)
    sentence = verdict_document(live, "sweep")["sentence"]
    assert "zero_stage-1" in sentence
    assert live.results("sweep") is live.results("sweep")
    _change(store, campaign, "zero_stage-1", state=RunState.FAILED, reason="x")
    _change(store, campaign, "zero_stage-1-r1", state=RunState.FAILED, reason="x")
    assert verdict_document(live, "sweep")["sentence"] != sentence


def test_the_database_itself_refuses_writes(store: Store, tmp_path: Path) -> None:
    campaign = plant(store, tmp_path, [_zero(0)])
    store.forbid_writes()
    assert len(LiveStore(store).runs("sweep").runs) == 2
    with pytest.raises(StoreReadOnly), store.write() as conn:
        queries.update_campaign(conn, campaign.id, desired="removed")
