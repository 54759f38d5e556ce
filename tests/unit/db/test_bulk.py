"""Many rows changed at once, and JSON that nobody has looked into."""

from __future__ import annotations

import copy
from dataclasses import asdict

import pytest

from dscampaign.db import bulk, queries
from dscampaign.db.records import NewAttempt, NewRun
from dscampaign.db.rows import StoredDocument
from dscampaign.db.states import AttemptState, RunState
from dscampaign.db.store import Store

RUNS = 2500
"""More than one statement takes."""


@pytest.fixture
def campaign_id(store: Store) -> int:
    with store.write() as conn:
        campaign_id = queries.insert_campaign(conn, name="c", spec="", spec_hash="", dir="/c", executor="slurm")
        new = [NewRun(f"r{i}", {"i": i}, {"train": {"lr": i}}, f"h{i}", i, 0, 10) for i in range(RUNS)]
        bulk.insert_runs(conn, campaign_id, new)
        runs = queries.runs(conn, campaign_id)
        attempts = [NewAttempt(run.id, 1, "t", run.config_hash, 4, 1, 8, 1, "slurm", "spool") for run in runs]
        bulk.insert_attempts(conn, attempts)
    return campaign_id


def test_each_row_gets_values_of_its_own(store: Store, campaign_id: int) -> None:
    with store.write() as conn:
        before = queries.attempts(conn, campaign_id)
        changes = {
            row.id: {"state": AttemptState.FAILED, "evidence": {"n": n}} if n % 2 else {"job_id": f"7_{n}"}
            for n, row in enumerate(before)
        }
        bulk.change_attempts(conn, changes)
        bulk.change_runs(conn, {before[0].run_id: {"state": RunState.FAILED, "reason": "x"}})
    with store.read() as conn:
        after = queries.attempts(conn, campaign_id)
        runs = queries.runs(conn, campaign_id)
    assert [row.job_id for row in after[::2]] == [f"7_{n}" for n in range(0, RUNS, 2)]
    assert [row.evidence for row in after[1::2]] == [{"n": n} for n in range(1, RUNS, 2)]
    assert {row.state for row in after[1::2]} == {AttemptState.FAILED}
    assert {row.state for row in after[::2]} == {AttemptState.INTENT}
    assert [run.name for run in runs if run.state is RunState.FAILED] == ["r0"]
    assert runs[0].updated_s >= runs[1].updated_s


def test_many_runs_that_get_the_same_and_few_that_do_not(store: Store, campaign_id: int) -> None:
    with store.write() as conn:
        ids = [run.id for run in queries.runs(conn, campaign_id)]
        same = {"state": RunState.CANCELLED, "reason": "", "not_before_s": None}
        own = {number: {"state": RunState.PENDING, "not_before_s": 1.0 + number} for number in ids[:5]}
        bulk.change_runs(conn, dict.fromkeys(ids, same) | own | {ids[5]: {"config": {"new": 1}}})
    with store.read() as conn:
        runs = queries.runs(conn, campaign_id)
    assert [run.not_before_s for run in runs] == [1.0 + number for number in ids[:5]] + [None] * (RUNS - 5)
    assert [run.name for run in runs if run.state is RunState.PENDING] == [f"r{i}" for i in range(6)]
    assert {run.state for run in runs[6:]} == {RunState.CANCELLED}
    assert runs[5].config == {"new": 1}


def test_states_and_evidence_of_many_attempts(store: Store, campaign_id: int) -> None:
    with store.write() as conn:
        ids = [row.id for row in queries.attempts(conn, campaign_id)]
        bulk.change_attempts(conn, {ids[3]: {"evidence": {"hang": "long"}}})
        assert bulk.lock_attempts(conn, ids) == dict.fromkeys(ids, AttemptState.INTENT)
        assert bulk.evidences(conn, ids[:5])[ids[3]] == {"hang": "long"}
        assert [row.id for row in bulk.attempts_of(conn, ids[::-1])] == ids[::-1]


def test_withdrawn_attempts_leave_their_runs_as_before(store: Store, campaign_id: int) -> None:
    with store.write() as conn:
        ids = [row.id for row in queries.attempts(conn, campaign_id)]
        bulk.withdraw_attempts(conn, ids[:10])
        left = queries.attempts(conn, campaign_id)
        runs = queries.runs(conn, campaign_id)
    assert len(left) == RUNS - 10
    assert [run.generation for run in runs[:12]] == [0] * 10 + [1, 1]


def test_a_configuration_is_parsed_on_access(store: Store, campaign_id: int) -> None:
    with store.read() as conn:
        run = queries.runs(conn, campaign_id)[7]
    assert isinstance(run.config, StoredDocument)
    assert run.config.text == '{"train": {"lr": 7}}'
    assert run.config == {"train": {"lr": 7}}
    assert {**run.config} == {"train": {"lr": 7}}
    assert (run.config.get("train"), run.config.get("x"), len(run.config)) == ({"lr": 7}, None, 1)
    assert isinstance(copy.deepcopy(run.config), dict)
    assert asdict(run)["config"] == {"train": {"lr": 7}}
