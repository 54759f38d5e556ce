"""The roles of a shared PostgreSQL: whoever may only add measurements can do nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from dscampaign.db import bulk, metrics, queries, schema
from dscampaign.db.errors import StoreError, StoreReadOnly
from dscampaign.db.ingest.metrics import MetricSpool
from dscampaign.db.ingest.spool import ingest
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.jobs.agent.push import Pusher
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.worlds import World, make_world

pytestmark = pytest.mark.postgres

ROLES = files("dscampaign.db") / "roles.sql"


def world_with_logins(postgres: PostgresServer, folder: Path) -> World:
    """A small campaign as the owner of the tables sees it, and a login in each role."""
    owner = Store.open(postgres.new_database(), check_schema=False)
    upgrade(owner)
    made = make_world(owner, folder)
    with owner.write() as conn:
        conn.exec_driver_sql(ROLES.read_text().replace("%", "%%"))
        for row in ("job campaign_ingest", "login campaign_owner", "page campaign_read", "both campaign_ingest"):
            name, role = row.split()
            conn.exec_driver_sql(f"DROP ROLE IF EXISTS a_{name}")
            conn.exec_driver_sql(f"CREATE ROLE a_{name} LOGIN IN ROLE {role}")
        conn.exec_driver_sql("GRANT campaign_owner TO a_both")
    return made


@pytest.fixture
def world(postgres: PostgresServer, tmp_path: Path) -> Iterator[World]:
    made = world_with_logins(postgres, tmp_path)
    yield made
    made.store.close()


def login(world: World, name: str) -> Store:
    return Store.open(world.store.url_without_password.replace("postgres@", f"{name}@"))


@pytest.fixture
def job(world: World) -> Iterator[Store]:
    store = login(world, "a_job")
    yield store
    store.close()


def run_sql(store: Store, sql: str) -> None:
    with store.write() as conn:
        conn.exec_driver_sql(sql.replace("%", "%%"))


def test_the_ingest_role_ingests_and_decides_nothing(world: World, job: Store) -> None:
    world.write(*({"step": step, "loss": 1.0, "mine": 2.0} for step in range(1, 301)), {"event": "hello"}, "bad")
    saved = {"event": "checkpoint", "step": 9, "path": "/c", "size_bytes": 8}
    world.write({"event": "target", "steps": 300}, saved)
    assert ingest(job, MetricSpool(1, world.spool())).lines == 304
    world.write({"step": 300, "eval_loss": 0.5}, {"step": 301, "loss": math.nan})
    world.write({"step": 301, "eval_loss": 2.0}, '{"step":302,"loss":1e999}')
    assert ingest(job, MetricSpool(1, world.spool())).lines == 4
    with job.write() as conn:
        assert queries.beat(conn, 1)
    with pytest.raises(StoreError, match="permission denied"), job.write() as conn:
        queries.update_run(conn, world.run_id, state=RunState.COMPLETED)
    rows = world.metrics()
    assert (len(rows), rows[299].eval_loss, rows[300].eval_loss) == (302, 0.5, 2.0)
    assert math.isnan(rows[300].loss or 0.0)
    assert world.latest().step == 302
    assert {event.kind for event in world.events("spool.corrupt")} == {"spool.corrupt"}
    with world.store.read() as conn:
        assert (queries.run_by_id(conn, world.run_id).target_step, queries.saved_steps(conn, 1)) == (300, {1: 9})


def test_an_agent_pushes_with_that_role(world: World, job: Store, capsys: pytest.CaptureFixture[str]) -> None:
    world.write(*({"step": step, "loss": 1.0} for step in range(1, 6)))
    (world.dir / "forward.jsonl").write_text('{"event":"opened","ts":1,"tool":"wandb","message":"m","run_id":"a"}\n')
    payload = replace(make_payload(world.dir), attempt_id=1, token="token")
    Pusher(payload, world.spool(), job.url_without_password)._push()
    assert capsys.readouterr().err == ""
    assert len(world.metrics()) == 5
    assert world.events("forward.opened")


def fill(world: World) -> None:
    """Two attempts of one run that have reported, of which the first has ended."""
    for generation in (1, 2):
        if generation == 2:
            world.attempt(2)
        world.write(
            {"step": 5, "ts": 7.0, "loss": 1.0, "mine": 2.0}, {"step": 6, "loss": math.nan}, generation=generation
        )
        world.ingest(generation)
        run_sql(world.store, f"INSERT INTO node_spool VALUES ({generation}, 0, 9)")
    run_sql(world.store, "UPDATE attempt SET state = 'completed', memory_key = 'k' WHERE id = 1")
    run_sql(world.store, "UPDATE run SET target_step = 10")


REFUSED = {
    # decisions and what they rest on
    "a spec": "UPDATE campaign SET spec = ''",
    "a command": "UPDATE run SET config = '{}'",
    "a state of a run": "UPDATE run SET state = 'completed'",
    "a known target": "UPDATE run SET target_step = 1",
    "no target": "UPDATE run SET target_step = NULL",
    "a state of an attempt": "UPDATE attempt SET state = 'completed' WHERE id = 2",
    "its evidence": "UPDATE attempt SET evidence = '{}' WHERE id = 2",
    "its GPU-hours": "UPDATE attempt SET gpu_seconds = 1 WHERE id = 2",
    "an attempt": "INSERT INTO attempt SELECT * FROM attempt",
    "a run": "INSERT INTO run (id) VALUES (9)",
    "a campaign": "INSERT INTO campaign (id) VALUES (9)",
    "a lease": "INSERT INTO lease VALUES ('a', 'b', 1, 1)",
    "an event of ours": "INSERT INTO event (campaign_id, run_id, attempt_id, ts_s, kind, message, data) "
    "VALUES (1, 1, 2, 1, 'submitting', '', '{}')",
    "an event of no attempt": "INSERT INTO event (campaign_id, ts_s, kind, message, data) "
    "VALUES (1, 1, 'script.x', '', '{}')",
    "an event of an ended one": "INSERT INTO event (campaign_id, run_id, attempt_id, ts_s, kind, message, data) "
    "VALUES (1, 1, 1, 1, 'script.x', '', '{}')",
    "a number of an event": "INSERT INTO event (id, campaign_id, run_id, attempt_id, ts_s, kind, message, data) "
    "VALUES (99999, 1, 1, 2, 1, 'script.x', '', '{}')",
    "an out-of-memory": "INSERT INTO memory_observation (key, attempt_id, micro_batch, oom, created_s) "
    "VALUES ('k', 2, 1, true, 1)",
    # measurements that are there
    "an offset back": "UPDATE attempt SET spool_offset = 0 WHERE id = 2",
    "a last step back": "UPDATE attempt SET last_step = 1 WHERE id = 2",
    "no last step": "UPDATE attempt SET last_step = NULL WHERE id = 2",
    "a first step": "UPDATE attempt SET start_step = 1 WHERE id = 2",
    "a heartbeat of tomorrow": "UPDATE attempt SET heartbeat_s = extract(epoch FROM now()) + 86400 WHERE id = 2",
    "an offset of a node back": "UPDATE node_spool SET spool_offset = 0 WHERE attempt_id = 2",
    "an offset of another node": "UPDATE node_spool SET node_rank = 3",
    "a loss": "UPDATE step_metric SET loss = 0 WHERE attempt_id = 2 AND step = 5",
    "no loss": "UPDATE step_metric SET loss = NULL WHERE attempt_id = 2 AND step = 5",
    "a loss that was NaN": "UPDATE step_metric SET loss = 0 WHERE attempt_id = 2 AND step = 6",
    "that it was": "UPDATE step_metric SET nonfinite = 0 WHERE attempt_id = 2 AND step = 6",
    "a time of a step": "UPDATE step_metric SET ts_s = 1 WHERE attempt_id = 2 AND step = 5",
    "a step": "UPDATE step_metric SET step = 9 WHERE attempt_id = 2",
    "an older newest step": "UPDATE run_latest SET step = 1",
    "a newest step of another attempt": "UPDATE run_latest SET attempt_id = 1, generation = 2",
    "another generation": "UPDATE run_latest SET generation = 99",
    "a metric": "UPDATE metric_extra SET value = 1",
    "fewer metrics": "DELETE FROM metric_extra",
    "fewer steps": "DELETE FROM step_metric",
    "no steps": "TRUNCATE step_metric",
    # attempts that are over
    "an offset of an ended attempt": "UPDATE attempt SET spool_offset = spool_offset + 1 WHERE id = 1",
    "its heartbeat": "UPDATE attempt SET heartbeat_s = 1 WHERE id = 1",
    "its node's": "UPDATE node_spool SET spool_offset = 99 WHERE attempt_id = 1",
    "a node of it": "INSERT INTO node_spool VALUES (1, 1, 9)",
    "a step of it": "INSERT INTO step_metric (attempt_id, step, nonfinite) VALUES (1, 9, 0)",
    "a step of none": "INSERT INTO step_metric (attempt_id, step, nonfinite) VALUES (99, 9, 0)",
    "what its step lacks": "UPDATE step_metric SET lr = 1 WHERE attempt_id = 1",
    "a metric of it": "INSERT INTO metric_extra VALUES (1, 9, 'x', 1)",
    "a GPU of it": "INSERT INTO gpu (attempt_id, node_rank, gpu, node, name, uuid) VALUES (1, 0, 0, '', '', '')",
    "a sample of it": "INSERT INTO gpu_sample (attempt_id, node_rank, gpu, ts_s, span_s) VALUES (1, 0, 0, 1, 1)",
    "a checkpoint of it": "INSERT INTO checkpoint VALUES (1, 1, 1, 5, '/', 1, 1)",
    "one of another generation": "INSERT INTO checkpoint VALUES (1, 2, 7, 5, '/', 1, 1)",
    "its memory": "INSERT INTO memory_observation (key, attempt_id, micro_batch, oom, created_s) "
    "VALUES ('k', 1, 1, false, 1)",
    # what it has no business with
    "specs": "SELECT spec FROM campaign",
    "commands": "SELECT config FROM run",
    "its own rules": "ALTER TABLE step_metric DISABLE ROW LEVEL SECURITY",
    "its trigger": "DROP TRIGGER campaign_ingest ON attempt",
    "numbers of attempts": "SELECT nextval('attempt_id_seq')",
    "a role": "SET ROLE campaign_owner",
}


@pytest.fixture(scope="module")
def full(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store of a campaign that has much to lose, as a job opens it."""
    made = world_with_logins(postgres, tmp_path_factory.mktemp("full"))
    fill(made)
    store = login(made, "a_job")
    yield store
    store.close()
    made.store.close()


@pytest.mark.parametrize("what", REFUSED)
def test_the_ingest_role_changes_nothing_that_is_known(full: Store, what: str) -> None:
    with pytest.raises(StoreError, match=r"permission denied|row-level security|only adds|must be owner"):
        run_sql(full, REFUSED[what])


def test_a_temporary_table_of_its_own_is_not_taken_for_ours(world: World, job: Store) -> None:
    fill(world)
    run_sql(world.store, "UPDATE run SET target_step = NULL; UPDATE attempt SET state = 'failed'")
    lie = "CREATE TEMP TABLE attempt AS SELECT id, run_id, 'running' AS state FROM public.attempt"
    with pytest.raises(StoreError, match="only adds"):
        run_sql(job, f"{lie}; UPDATE public.run SET target_step = 1")


def test_the_owner_s_role_is_as_free_as_before_even_beside_the_other(world: World) -> None:
    fill(world)
    for name in ("a_login", "a_both"):
        store = login(world, name)
        with store.write() as conn:
            assert queries.update_attempt(conn, 2, state=AttemptState.COMPLETED, gpu_seconds=1.0, start_step=0)
            queries.add_event(conn, 1, "ended", "", run_id=1, attempt_id=1)
            conn.execute(schema.attempt.update().values(spool_offset=0))
            conn.execute(schema.step_metric.update().values(loss=3.0))
            conn.execute(schema.run.update().values(target_step=4))
        world.write({"step": 9, "loss": 2.0})
        ingest(store, MetricSpool(1, world.spool()))
        store.close()
    store = login(world, "a_login")
    with store.write() as conn:
        conn.execute(schema.step_metric.delete())
        conn.execute(schema.events.delete())
        bulk.withdraw_attempts(conn, [2])
        assert [row.id for row in queries.attempts(conn, world.campaign_id)] == [1]
    store.close()


def test_the_read_role_sees_everything_and_writes_nothing(world: World) -> None:
    fill(world)
    page = login(world, "a_page")
    with page.read() as conn:
        assert len(list(metrics.metrics(conn, world.run_id))) == 2
        assert queries.events(conn, world.campaign_id) is not None
    with pytest.raises(StoreReadOnly, match="permission denied for table step_metric"):
        run_sql(page, "UPDATE step_metric SET loss = 0")
    page.close()
