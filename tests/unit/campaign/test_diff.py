"""A spec's runs against the stored ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from dscampaign.db.records import RunRow
from dscampaign.db.states import ABSENT, Cause, CauseCode, RunState
from dscampaign.orchestrator.campaign.diff import as_kept, asked_again, desired_again, merge
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.executors.pending_reason import waits_because
from dscampaign.orchestrator.spec.effects import DESCRIBES_ONLY, FIELDS, LEARNED
from dscampaign.orchestrator.spec.expand import Run
from dscampaign.orchestrator.spec.model import RunConfig, TrainConfig
from dscampaign.tests.support.policy_world import run_row


def new(name: str, config_hash: str = "") -> Run:
    """A run of a spec."""
    train = TrainConfig(steps=10, global_batch=8, micro_batch=8)
    return Run(name, {}, 0, RunConfig(ranks_per_node=1, train=train), config_hash or f"hash-{name}")


def stored(name: str, state: RunState = RunState.PENDING, **values: Any) -> RunRow:
    return run_row(**{"name": name, "config_hash": f"hash-{name}", "state": state, **values})


@pytest.mark.parametrize("state", list(RunState))
def test_the_same_experiment_is_kept_in_any_state(state: RunState) -> None:
    row = stored("a", state)
    found = merge([new("a")], [row])
    assert found.keep == ((row, new("a")),)
    assert (found.create, found.replace, found.drop) == ((), (), ())


def test_a_run_keeps_its_name_when_the_matrix_would_now_name_it_otherwise() -> None:
    row = stored("lr-1", RunState.COMPLETED)
    [(kept, run)] = merge([new("lr-1-depth-2", "hash-lr-1")], [row]).keep
    assert (kept.name, run.config_hash) == ("lr-1", "hash-lr-1")


def test_a_new_run_does_not_take_the_name_of_a_kept_one() -> None:
    row = stored("a", RunState.COMPLETED, config_hash="old")
    found = merge([new("b", "old"), new("a", "newhash123")], [row])
    assert [run.name for run in found.create] == ["a-newhas"]
    assert not found.replace


@pytest.mark.parametrize("state", [RunState.PENDING, RunState.FAILED, RunState.HELD, RunState.CANCELLED])
def test_an_experiment_that_never_got_anywhere_may_change(state: RunState) -> None:
    row = stored("a", state)
    assert merge([new("a", "other")], [row]).replace == ((row, new("a", "other")),)


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (RunState.QUEUED, "cancel it first, or give the campaign another name"),
        (RunState.RUNNING, "cancel it first, or give the campaign another name"),
        (RunState.COMPLETED, "from a single experiment: give the campaign another name"),
    ],
)
def test_results_under_one_name_come_from_one_experiment(state: RunState, hint: str) -> None:
    with pytest.raises(UserError, match=f"run a is {state}, and its experiment has changed") as caught:
        merge([new("a", "other")], [stored("a", state)])
    assert hint in (caught.value.hint or "")


def test_a_run_with_a_checkpoint_keeps_its_ranks() -> None:
    before = new("a").stored_config
    before["ranks_per_node"] = 4
    row = stored("a", RunState.FAILED, id=7, config=before)
    with pytest.raises(UserError, match=r"has a checkpoint, .* other ranks: ranks_per_node: 4 → 1"):
        merge([new("a", "other")], [row], saved=[7])
    assert merge([new("a", "other")], [row], saved=[8]).replace  # nothing would be lost
    before["train"] |= {"lr": 0.5}
    assert merge([new("a", "other")], [row], saved=[7]).replace  # another experiment, which starts afresh anyway


def test_a_changed_experiment_is_refused_by_the_fields_that_changed() -> None:
    before = new("a").stored_config
    before["train"] |= {"lr": 0.5, "eval_every": 7}
    before["slurm"] |= {"time": "9:00"}  # no part of the experiment
    before["deepspeed"] = {"zero_optimization": {"overlap_comm": False}}
    with pytest.raises(UserError) as caught:
        merge([new("a", "other")], [stored("a", RunState.RUNNING, config=before)])
    lr = RunConfig().train.lr
    changes = f"in the spec: train.lr: 0.5 → {lr}, deepspeed.zero_optimization.overlap_comm: False → not set"
    assert caught.value.message.endswith(changes)


def test_runs_outside_the_spec_are_dropped() -> None:
    rows = [stored("a"), stored("b", RunState.COMPLETED)]
    assert merge([new("c")], rows).drop == tuple(rows)


@pytest.mark.parametrize(
    ("state", "attempts", "becomes", "epochs"),
    [
        (RunState.CANCELLED, 1, RunState.PENDING, 1),
        (RunState.CANCELLED, 0, RunState.PENDING, 0),
        (RunState.RUNNING, 1, RunState.RUNNING, 1),
        (RunState.COMPLETED, 1, RunState.COMPLETED, 0),
        (RunState.FAILED, 1, RunState.FAILED, 0),
    ],
)
def test_runs_that_return_to_the_spec_are_wanted_again(
    state: RunState, attempts: int, becomes: RunState, epochs: int
) -> None:
    again = desired_again(replace(stored("a", state, desired=ABSENT), generation=attempts))
    assert (again.desired, again.state, again.retry_epoch) == ("run", becomes, epochs)


def test_a_run_that_was_cancelled_by_name_stays_cancelled() -> None:
    row = stored("a", RunState.CANCELLED, desired="cancel")
    assert desired_again(row) == row


def test_results_of_one_campaign_are_measured_alike() -> None:
    """The digest leaves the number of evaluated batches out, and kept campaigns rely on theirs."""
    train = new("a").config.train.model_copy(update={"eval_batches": 8, "keep_checkpoints": 3})
    more = replace(new("a"), config=RunConfig(ranks_per_node=1, train=train))
    row = stored("a", RunState.COMPLETED, config=new("a").stored_config)
    with pytest.raises(UserError, match=r"experiment has changed in the spec: train.eval_batches: not set → 8\n"):
        merge([more], [row])
    assert merge([more], [stored("a", RunState.FAILED)]).keep
    assert merge([more], [stored("a", RunState.COMPLETED, config=more.stored_config)]).keep
    script = replace(new("a"), config=RunConfig(ranks_per_node=1, command=("t.py",)))
    told = replace(script, config=RunConfig(ranks_per_node=1, command=("t.py",), train=TrainConfig(eval_batches=8)))
    assert merge([told], [stored("a", RunState.COMPLETED, config=script.stored_config)]).keep  # it does not heed it


def test_every_field_of_train_has_an_effect() -> None:
    assert set(TrainConfig.model_fields) == FIELDS
    assert not LEARNED & DESCRIBES_ONLY


def test_a_job_that_will_not_start_is_replaced_once_the_spec_asks_for_another() -> None:
    why, cause = waits_because("PartitionTimeLimit")
    stuck = stored("a", RunState.QUEUED, reason=why, cause=cause, config=new("a").stored_config)
    other = replace(new("a"), config=RunConfig.model_validate({"slurm": {"time": "4"}}))
    assert asked_again(stuck, other) == replace(stuck, retry_epoch=stuck.retry_epoch + 1)
    waiting = replace(stuck, cause=waits_because("Priority")[1])
    for row, run in ((stuck, new("a")), (waiting, other), (replace(stuck, desired="cancel"), other)):
        assert asked_again(row, run) == row


@pytest.mark.parametrize("field", ["partition", "account", "qos", "reservation"])
def test_a_queued_job_moves_with_the_spec(field: str) -> None:
    queued = stored("a", RunState.QUEUED, cause=waits_because("Priority")[1], config=new("a").stored_config)
    other = replace(new("a"), config=RunConfig.model_validate({"slurm": {field: "other"}}))
    assert as_kept(queued, other).retry_epoch == queued.retry_epoch + 1
    running = replace(queued, state=RunState.RUNNING)
    assert as_kept(running, other).retry_epoch == queued.retry_epoch


def test_a_refused_run_starts_anew_once_it_asks_for_another_job() -> None:
    refused = stored("a", RunState.FAILED, cause=Cause(CauseCode.REFUSED), config=new("a").stored_config)
    other = replace(new("a"), config=RunConfig.model_validate({"slurm": {"partition": "main"}}))
    again = asked_again(refused, other)
    assert (again.state, again.reason, again.retry_epoch) == (RunState.PENDING, "", refused.retry_epoch + 1)
    assert asked_again(refused, new("a")) == refused
    cancelled = replace(refused, desired="cancel")
    assert asked_again(cancelled, other) == cancelled
    crashed = replace(refused, cause=None)
    assert asked_again(crashed, other) == crashed


def trained(steps: int, config_hash: str, **train: Any) -> Run:
    """A run of the built-in training with a constant learning rate, unless another schedule is said."""
    fields = {"model": "gpt2", "dataset": {"path": "x"}, "schedule": "constant", "global_batch": 8, "micro_batch": 8}
    config = RunConfig(ranks_per_node=1, train=TrainConfig(**{**fields, "steps": steps, **train}))
    return Run("a", {}, 0, config, config_hash)


def as_stored(run: Run, state: RunState = RunState.COMPLETED, **values: Any) -> RunRow:
    return stored(
        "a", state, config=run.stored_config, config_hash=run.config_hash, target_step=run.target_step, **values
    )


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.HELD, RunState.CANCELLED])
def test_more_steps_go_on_from_the_last_checkpoint(state: RunState) -> None:
    row, longer = as_stored(trained(10, "old"), state, desired="cancel", retry_epoch=1), trained(20, "new")
    assert merge([longer], [row], saved={row.id}).keep == ((row, longer),)
    again = as_kept(row, longer)
    assert (again.state, again.desired, again.target_step, again.retry_epoch) == (RunState.PENDING, "run", 20, 2)
    assert (again.config_hash, again.config["train"]["steps"]) == ("old", 20)
    assert merge([longer], [again], saved={row.id}).keep == ((again, longer),)  # and once more
    assert as_kept(again, longer) == again
    done = replace(again, state=RunState.COMPLETED)
    assert as_kept(done, longer) == done
    assert merge([longer], [replace(again, state=RunState.RUNNING)], saved={row.id}).keep


@pytest.mark.parametrize(
    ("before", "after", "saved", "hint"),
    [
        ({"schedule": "cosine"}, {"schedule": "cosine"}, True, "constant schedule, .* `campaign promote`"),
        ({}, {"schedule": "linear"}, True, "constant schedule, "),
        ({}, {"lr": 1.0}, True, "no other change"),
        ({}, {}, False, "a checkpoint"),
        ({"steps": 30}, {}, True, "another name$"),  # which has made more already
    ],
)
def test_a_finished_run_does_not_go_on_as_another_experiment(
    before: dict[str, Any], after: dict[str, Any], saved: bool, hint: str
) -> None:
    row = as_stored(trained(**{"steps": 10, "config_hash": "old", **before}))
    with pytest.raises(UserError, match="its experiment has changed") as raised:
        merge([trained(20, "new", **after)], [row], saved={row.id} if saved else ())
    assert re.search(hint, raised.value.hint or "")


def test_one_that_is_under_way_has_to_be_cancelled_first() -> None:
    row = as_stored(trained(10, "old"), RunState.RUNNING)
    with pytest.raises(UserError) as raised:
        merge([trained(20, "new")], [row], saved={row.id})
    assert "cancel it first" in (raised.value.hint or "")
