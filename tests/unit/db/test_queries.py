"""The questions that the orchestrator asks."""

import re
from dataclasses import replace

import pytest
from sqlalchemy import JSON, event

from dscampaign.db import bulk, queries, schema
from dscampaign.db.errors import StaleWrite
from dscampaign.db.records import CheckpointRow, MemoryObservation, NewRun
from dscampaign.db.rows import DocumentType
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store
from dscampaign.tests.support.worlds import World, new_attempt, new_campaign


def test_a_campaign_and_its_runs_come_back_as_they_went_in(store: Store) -> None:
    with store.write() as conn:
        campaign_id = queries.insert_campaign(
            conn, name="sweep", spec="a: ü", spec_hash="s", dir="/d", executor="slurm", provenance={"git": "abc"}
        )
        bulk.insert_runs(conn, campaign_id, [_new_run("b", 1), _new_run("a", 0)])
        now_s = store.now(conn)
    with store.read() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
        first, second = queries.runs(conn, campaign_id)
        assert queries.list_campaigns(conn) == [campaign]
        assert queries.campaign_by_name(conn, "none") is None
    assert campaign is not None
    assert (campaign.spec, campaign.desired, campaign.provenance) == ("a: ü", "active", {"git": "abc"})
    assert abs(campaign.created_s - now_s) < 60
    assert (first.name, second.name) == ("a", "b")
    assert (first.params, first.config, first.target_step) == ({"lr": 1e-4}, {"deep": [1, None]}, 100)
    assert (first.state, first.generation, first.retry_epoch, first.desired) == (RunState.PENDING, 0, 0, "run")


def test_a_name_is_taken_once(world: World) -> None:
    with pytest.raises(StaleWrite), world.store.write() as conn:
        new_campaign(conn)
    with pytest.raises(StaleWrite), world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [_new_run("fresh"), _new_run("run")])
    with world.store.read() as conn:
        assert [run.name for run in queries.runs(conn, world.campaign_id)] == ["run"]


def test_an_update_that_expects_another_state_changes_nothing(world: World) -> None:
    with world.store.write() as conn:
        assert queries.update_run(conn, world.run_id, expect_states=[RunState.PENDING], state=RunState.QUEUED)
        assert not queries.update_run(conn, world.run_id, expect_states=[RunState.PENDING], state=RunState.FAILED)
        assert queries.update_attempt(conn, 1, expect_states=[AttemptState.INTENT], job_id="7", evidence={"a": 1})
        assert not queries.update_attempt(conn, 1, expect_states=[AttemptState.RUNNING], job_id="8")
        assert not queries.update_attempt(conn, 99, job_id="8")
        [run] = queries.runs(conn, world.campaign_id)
        [attempt] = queries.attempts(conn, world.campaign_id)
    assert run.state is RunState.QUEUED
    assert (attempt.job_id, attempt.evidence, attempt.state) == ("7", {"a": 1}, AttemptState.INTENT)


def test_a_generation_is_decided_once(world: World) -> None:
    world.attempt(2)
    with pytest.raises(StaleWrite):
        world.attempt(2)
    with world.store.read() as conn:
        assert queries.runs(conn, world.campaign_id)[0].generation == 2
        assert [row.generation for row in queries.attempts(conn, world.campaign_id, world.run_id)] == [1, 2]


def test_events_come_in_order_and_a_limit_keeps_the_newest(world: World) -> None:
    with world.store.write() as conn:
        for number in range(5):
            run_id = world.run_id if number % 2 else None
            queries.add_event(conn, world.campaign_id, "note", f"n{number}\0\ud800", run_id=run_id, data={"n": number})
        assert [event.data["n"] for event in queries.events(conn, world.campaign_id)] == [0, 1, 2, 3, 4]
        assert [event.data["n"] for event in queries.events(conn, world.campaign_id, limit=2)] == [3, 4]
        of_run = queries.events(conn, world.campaign_id, world.run_id)
    assert [event.data["n"] for event in of_run] == [1, 3]
    assert of_run[0].message == "n1\ufffd?"


def test_a_batch_of_attempts_keeps_its_order_and_makes_each_the_newest(world: World) -> None:
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [_new_run(f"r{number}", number) for number in range(1, 2500)])
        runs = queries.runs(conn, world.campaign_id)[:0:-1]
        attempts = bulk.insert_attempts(conn, [new_attempt(run.id, 1) for run in runs])
        bulk.insert_attempts(conn, [new_attempt(runs[0].id, 3)])
    with world.store.read() as conn:
        made = {row.id: row.run_id for row in queries.attempts(conn, world.campaign_id)}
        newest = {run.id: run.generation for run in queries.runs(conn, world.campaign_id)}
    assert (
        [made[attempt.id] for attempt in attempts]
        == [attempt.run_id for attempt in attempts]
        == [run.id for run in runs]
    )
    assert newest == {run.id: 1 for run in runs} | {world.run_id: 1, runs[0].id: 3}


def test_a_batch_with_a_generation_that_is_there_leaves_nothing(world: World) -> None:
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [_new_run("late", 1)])
        late = queries.runs(conn, world.campaign_id)[1]
    with pytest.raises(StaleWrite), world.store.write() as conn:
        bulk.insert_attempts(conn, [new_attempt(late.id, 1), new_attempt(world.run_id, 1)])
    with world.store.read() as conn:
        assert [row.run_id for row in queries.attempts(conn, world.campaign_id)] == [world.run_id]
        assert queries.run_by_id(conn, late.id).generation == 0


def test_jobs_are_recorded_of_attempts_that_were_only_intended(world: World) -> None:
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [_new_run(f"r{number}", number) for number in range(1, 4)])
        runs = queries.runs(conn, world.campaign_id)[1:]
        new = [new_attempt(run.id, 1) for run in runs]
        first, second, third = (attempt.id for attempt in bulk.insert_attempts(conn, new))
        queries.update_attempt(conn, second, state=AttemptState.RUNNING, job_id="adopted")
        assert bulk.mark_queued(conn, {first: "7_0", second: "7_1"}) == [first]
        found = {row.id: (row.state, row.job_id) for row in queries.attempts(conn, world.campaign_id)}
    assert found[first] == (AttemptState.QUEUED, "7_0")
    assert found[second] == (AttemptState.RUNNING, "adopted")
    assert found[third] == (AttemptState.INTENT, None)


def test_the_newest_checkpoint_counts_of_the_present_configuration_alone(world: World) -> None:
    with world.store.write() as conn:
        assert queries.saved_steps(conn, world.campaign_id) == {}
        assert queries.checkpoint_sizes(conn, [world.run_id]) == {}
        for step, size in ((100, 30), (200, 10)):
            queries.record_checkpoint(conn, CheckpointRow(world.run_id, 1, 1, step, f"/c/{step}", size))
        assert queries.saved_steps(conn, world.campaign_id) == {world.run_id: 200}
        assert queries.checkpoint_sizes(conn, [world.run_id]) == {world.run_id: 30}
        queries.update_run(conn, world.run_id, config_hash="another")
        assert queries.saved_steps(conn, world.campaign_id) == {}


def test_the_ledger_of_a_key_spans_campaigns(world: World) -> None:
    with world.store.write() as conn:
        other = new_campaign(conn, "other")
        bulk.insert_runs(conn, other, [NewRun("run", {}, {}, "h", 0)])
        [run] = queries.runs(conn, other)
        ids = [1, bulk.insert_attempts(conn, [replace(new_attempt(run.id), memory_key="a_b")])[0].id]
        queries.update_attempt(conn, 1, memory_key="a_b")
        ids.append(bulk.insert_attempts(conn, [replace(new_attempt(run.id, 2), memory_key="axb")])[0].id)
        for attempt_id, key in zip(ids, ("a_b|GPU|2", "a_b|CPU|2", "axb|GPU|2"), strict=True):
            queries.observe_memory(conn, MemoryObservation(key, attempt_id, 4, oom=False, usable_gb=1.0))
    with world.store.read() as conn:
        found = queries.memory_of(conn, ["a_b", "nothing"])
        assert queries.memory_of(conn, []) == {}
    assert [seen.key for seen in found.pop("a_b")] == ["a_b|GPU|2", "a_b|CPU|2"]
    assert not found


def test_status_shows_runs_with_and_without_figures(world: World) -> None:
    world.write({"step": 3, "loss": 2.0})
    world.ingest()
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [_new_run("late", 1)])
        queries.update_run(conn, world.run_id, state=RunState.RUNNING)
        first, second = queries.status(conn, world.campaign_id)
    assert (first.run_id, first.name, first.state, first.step, first.loss) == (1, "run", RunState.RUNNING, 3, 2.0)
    assert (first.micro_batch, first.accumulation, first.world_size) == (4, 2, 2)
    assert (second.name, second.state, second.step, second.micro_batch) == ("late", RunState.PENDING, None, None)
    assert second.target_step == 100


def test_a_status_is_one_question_that_reads_no_metrics_and_no_json(world: World) -> None:
    """Else a page of ten thousand runs would take seconds; benchmarks/store.py measures it."""
    asked: list[str] = []
    with world.store.read() as conn:
        event.listen(conn, "before_cursor_execute", lambda *given: asked.append(given[2]))
        assert len(queries.status(conn, world.campaign_id)) == 1
    [question] = asked
    tables = (schema.run, schema.attempt, schema.run_latest)
    heavy = [column.name for table in tables for column in table.c if isinstance(column.type, JSON | DocumentType)]
    assert {"config", "params"} <= set(heavy)
    assert [name for name in (schema.step_metric.name, *heavy) if re.search(rf"\b{name}\b", question)] == []


def _new_run(name: str, ordinal: int = 0) -> NewRun:
    return NewRun(name, {"lr": 1e-4}, {"deep": [1, None]}, "h1", ordinal, target_step=100)
