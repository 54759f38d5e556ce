"""What an agent sends to a store, and to which."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.pool import QueuePool

from dscampaign.db import gpu_queries
from dscampaign.db.store import Store
from dscampaign.jobs.agent.push import Pusher
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.worlds import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True), tmp_path)


def push(world: World, folder: Path, token: str, **values: Any) -> None:
    payload = replace(make_payload(folder), attempt_id=1, token=token, **values)
    Pusher(payload, world.spool(), world.store.url_without_password)._push()


def test_an_agent_pushes_again_and_keeps_no_connection(world: World, tmp_path: Path) -> None:
    pusher = Pusher(
        replace(make_payload(tmp_path), attempt_id=1, token="token"), world.spool(), world.store.url_without_password
    )
    for step in (1, 2, 3):
        world.write({"step": step, "loss": 2.0})
        pusher._push()
        assert [row.step for row in world.metrics()] == list(range(1, step + 1))
        assert pusher._store
        pool = pusher._store._engine.pool
        assert isinstance(pool, QueuePool)
        assert pool.checkedin() == pool.checkedout() == 0


def test_one_agent_pushes_the_telemetry_of_all_nodes(world: World, tmp_path: Path) -> None:
    for node in (0, 1):
        lines = '{"ts":1,"span_s":1,"gpu":[0],"power_w":[500]}\n' * 2 + '{"ts":2,'
        world.spool().with_name(f"gpus-{node}.jsonl").write_text(lines)
    for _ in range(2):
        push(world, tmp_path, "token", nodes=2, telemetry_s=1.0)
    with world.store.read() as conn:
        assert [(row.node_rank, row.ts_s) for row in gpu_queries.gpu_samples(conn, 1)] == [(0, 1.0), (1, 1.0)]


def test_nothing_reaches_the_attempt_of_another_store_with_the_same_number(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.write({"step": 1, "loss": 2.0})
    push(world, tmp_path, "another")
    assert world.metrics() == []
    assert "does CAMPAIGN_STORE name another store?" in capsys.readouterr().err
