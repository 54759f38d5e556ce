"""What forwarders say becomes events of the attempt, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dscampaign.db import gpu_queries, queries
from dscampaign.db.ingest.attempt import FORWARDERS, ForwardSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.store import Store
from dscampaign.tests.support.worlds import World, make_world

OPENED = {"event": "opened", "ts": 5.0, "tool": "wandb", "message": "W&B: run a", "run_id": "a", "where": "w"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True), tmp_path)


def say(world: World, *lines: dict[str, object] | str) -> Path:
    spool = world.dir / "forward.jsonl"
    with spool.open("a") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return spool


def test_each_line_is_one_event(world: World) -> None:
    spool = say(world, OPENED)
    for _ in range(2):
        assert ingest(world.store, ForwardSpool(1, spool)).caught_up
    say(world, {"event": "failed", "ts": 6.0, "tool": "wandb", "message": "no"})
    ingest(world.store, ForwardSpool(1, spool))
    [opened] = world.events("forward.opened")
    assert (opened.message, opened.ts_s, opened.attempt_id) == ("W&B: run a", 5.0, 1)
    assert opened.data == {"tool": "wandb", "run_id": "a", "where": "w"}
    assert [event.message for event in world.events("forward.failed")] == ["no"]
    with world.store.read() as conn:
        assert gpu_queries.node_offsets(conn, [1]) == {1: {FORWARDERS: spool.stat().st_size}}


def test_the_newest_report_of_each_tool_counts(world: World) -> None:
    spool = say(world, OPENED, {**OPENED, "tool": "mlflow"}, {**OPENED, "where": "w2"})
    ingest(world.store, ForwardSpool(1, spool))
    with world.store.read() as conn:
        found = queries.forwards(conn, world.campaign_id)
    assert {tool: data["where"] for tool, data in found[world.run_id].items()} == {"wandb": "w2", "mlflow": "w"}


def test_lines_without_an_event_are_set_aside(world: World) -> None:
    ingest(world.store, ForwardSpool(1, say(world, "rubbish", OPENED)))
    [bad] = world.events("spool.corrupt")
    assert "byte 0 of forward.jsonl" in bad.message
    assert len(world.events("forward.opened")) == 1
