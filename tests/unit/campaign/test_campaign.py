"""What a user may want, as changes of what is desired."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.states import ABSENT, REMOVED, Cause, CauseCode, RunState
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.plan import make_plan
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.reconcile.campaign_folder import CampaignFolder
from dscampaign.tests.support.world_on_disk import SPEC, World, make_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = make_world(tmp_path)
    yield made
    made.store.close()


def set_run(world: World, name: str, **values: Any) -> None:
    with world.store.write() as conn:
        queries.update_run(conn, world.runs()[name].id, **values)


def test_a_submission_records_all_that_a_run_needs(world: World) -> None:
    row = world.record()
    runs = world.runs()
    assert list(runs) == ["depth-1", "depth-2"]
    first = runs["depth-1"]
    assert (first.state, first.desired, first.target_step, first.params) == (RunState.PENDING, "run", 3, {"depth": 1})
    assert first.config["command"][-1] == "1"
    assert (row.dir, row.executor, row.desired) == (str(world.folder), "slurm", "active")
    assert row.provenance["spec"] == str(world.folder / "spec.yaml")


def test_the_same_submission_again_changes_nothing(world: World) -> None:
    world.record()
    before = {name: (run.id, run.state, run.config_hash) for name, run in world.runs().items()}
    campaign, change = campaigns.spec_diff(world.store, world.submission())
    assert campaign is not None
    assert (len(change.keep), change.create, change.replace, change.drop) == (2, (), (), ())
    world.record()
    assert {name: (run.id, run.state, run.config_hash) for name, run in world.runs().items()} == before


def test_a_run_that_has_completed_keeps_the_configuration_that_it_ran_with(world: World) -> None:
    world.record(slurm={**SPEC["slurm"], "partition": "a100"})
    set_run(world, "depth-1", state=RunState.COMPLETED)
    world.record(slurm={**SPEC["slurm"], "partition": "h100"}, train={"steps": 3, "keep_checkpoints": 7})
    assert {run.config["train"]["keep_checkpoints"] for run in world.runs().values()} == {7}  # it is yet to be deleted
    assert {name: run.config["slurm"]["partition"] for name, run in world.runs().items()} == {
        "depth-1": "a100",
        "depth-2": "h100",
    }


def test_an_experiment_that_failed_may_be_another_one(world: World) -> None:
    world.record(matrix={"depth": [1]})
    set_run(world, "depth-1", state=RunState.FAILED, reason="x", not_before_s=5.0, desired="cancel")
    before = world.runs()["depth-1"]
    world.record(matrix={"depth": [1]}, train={"steps": 9})
    after = world.runs()["depth-1"]
    assert (after.id, after.state, after.reason, after.not_before_s) == (before.id, RunState.PENDING, "", None)
    assert (after.desired, after.target_step) == ("run", 9)
    assert after.config_hash != before.config_hash
    assert [event.message for event in world.events("replaced")] == ["its experiment changed in the spec"]


def test_a_campaign_stays_where_it_is(world: World, tmp_path: Path) -> None:
    world.record()
    elsewhere = Submission(**{**vars(world.submission()), "dir": tmp_path / "other"})
    with pytest.raises(UserError, match="lives in") as caught:
        campaigns.record(world.store, elsewhere)
    assert f"--dir {world.folder}" in (caught.value.hint or "")
    with pytest.raises(UserError, match="runs on slurm, the spec says local"):
        world.record(executor="local", slurm={})


def test_a_removal_that_begins_meanwhile_is_not_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.record()

    def begins(_: CampaignFolder) -> None:
        with world.store.write() as conn:
            queries.update_campaign(conn, world.campaign.id, desired=REMOVED)

    monkeypatch.setattr(CampaignFolder, "require_or_begin_anew", begins)
    with pytest.raises(UserError, match="is being removed"):
        world.record()
    assert world.campaign.desired == REMOVED


def test_a_refused_submission_changes_nothing(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.RUNNING)
    before = world.runs()
    with pytest.raises(UserError, match="its experiment has changed"):
        world.record(train={"steps": 9})
    assert world.runs() == before


# -- cancel and retry --------------------------------------------------------------------------------------------


def test_cancel_marks_unended_runs_once(world: World) -> None:
    world.record()
    set_run(world, "depth-2", state=RunState.COMPLETED)
    for _ in range(2):  # whoever asks again, as after an interruption, sees to it again
        assert [run.name for run in campaigns.cancel(world.store, world.campaign, None).changed] == ["depth-1"]
    assert [event.kind for event in world.events("cancel.asked")] == ["cancel.asked"]
    assert {run.desired for run in world.runs().values()} == {"cancel", "run"}


def test_a_name_that_is_no_run_is_refused_before_anything_is_done(world: World) -> None:
    world.record()
    for action in (campaigns.cancel, campaigns.retry):
        with pytest.raises(UserError, match="no run named depth-9 in c"):
            action(world.store, world.campaign, ["depth-1", "depth-9"])
    assert {run.desired for run in world.runs().values()} == {"run"}


def test_retry_takes_failed_and_held_runs_and_by_name_cancelled_ones(world: World) -> None:
    world.record(matrix={"depth": [1, 2, 3, 4]})
    for name, state in (("depth-1", "failed"), ("depth-2", "held"), ("depth-3", "cancelled"), ("depth-4", "completed")):
        set_run(world, name, state=RunState(state), reason="x", desired="cancel" if state == "cancelled" else "run")
    assert [run.name for run in campaigns.retry(world.store, world.campaign, None)] == ["depth-1", "depth-2"]
    assert [run.name for run in campaigns.retry(world.store, world.campaign, ["depth-3"])] == ["depth-3"]
    again = [world.runs()[f"depth-{i}"] for i in (1, 2, 3)]
    assert {(run.state, run.reason, run.desired, run.retry_epoch) for run in again} == {
        (RunState.PENDING, "", "run", 1)
    }
    with pytest.raises(UserError, match="run depth-4 is completed"):
        campaigns.retry(world.store, world.campaign, ["depth-4"])


def test_a_retry_lists_the_runs_that_begin_again_and_the_rest(world: World) -> None:
    world.record(matrix={"depth": [1, 2, 3, 4, 5, 6]})
    states = ("failed", "held", "cancelled", "completed", "screened", "cancelled")
    for depth, state in enumerate(states, 1):
        set_run(world, f"depth-{depth}", state=RunState(state), desired=ABSENT if depth == 6 else "run")

    def text(names: list[str] | None, *, cancelled: bool = False) -> str:
        with world.store.read() as conn:
            return campaigns.what_retries(conn, world.campaign, names, cancelled=cancelled).text

    left = "1 completed, 1 screened, 1 no longer in the spec"
    assert text(None) == f"2 runs to retry: 1 failed, 1 held\nunchanged: 1 cancelled, {left}"
    assert text(None, cancelled=True) == f"3 runs to retry: 1 failed, 1 held, 1 cancelled\nunchanged: {left}"
    named = [f"depth-{depth}" for depth in (4, 5, 6)]
    assert text(named) == "2 runs to retry: 1 screened, 1 no longer in the spec\nunchanged: 1 completed"
    assert text([]) == "nothing to retry"
    with world.store.read() as conn:
        found = campaigns.what_retries(conn, world.campaign, ["depth-1", "depth-6"], unnamed=False)
    assert [run.name for run in found.changed] == ["depth-1"]


def test_a_cancellation_lists_the_runs_that_end_and_the_rest(world: World) -> None:
    world.record(matrix={"depth": [1, 2, 3, 4]})
    for depth, state in enumerate(("queued", "failed", "cancelled", "completed"), 1):
        set_run(world, f"depth-{depth}", state=RunState(state))

    def text(*depths: int) -> str:
        names = [f"depth-{depth}" for depth in depths]
        return campaigns.cancel(world.store, world.campaign, names or None).text

    assert text(1) == "1 run to cancel: 1 queued"
    assert text(3, 4) == "nothing to cancel\nunchanged: 1 cancelled, 1 completed"
    assert text(2) == "nothing to cancel\nno further attempt: 1 failed"
    assert text() == "1 run to cancel: 1 cancelling\nunchanged: 1 failed, 1 cancelled, 1 completed"


@pytest.mark.parametrize(
    ("script", "changes", "remarked"),
    [
        ("print(1)", {"repeats": 3}, True),
        ("print(1)", {"repeats": 1}, False),
        ("import os; os.environ['CAMPAIGN_SEED']", {"repeats": 3}, False),
        ("from dscampaign import report", {"repeats": 3}, True),
        ("torch.manual_seed(0)", {"repeats": 3}, True),
        ("print(1)", {"repeats": 3, "command": ["train.py", "--depth", "{depth}", "--rng", "{seed}"]}, False),
        ("print(1)", {"repeats": 3, "env": {"RNG": "{seed}"}}, False),
        ("print(1)", {"repeats": 3, "code": "live"}, False),
    ],
)
def test_the_plan_remarks_on_repeats_whose_seed_reaches_no_script(
    world: World, script: str, changes: dict[str, Any], remarked: bool
) -> None:
    (world.folder / "train.py").write_text(script)
    notes = make_plan(world.store, world.submission(**changes)).remarks
    assert any("nothing in `command` uses the seed" in note for note in notes) is remarked


def test_retry_drops_the_missing_variables_of_its_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["HF_HOME", "HF_TOKEN", "WANDB_API_KEY"]
    for name in names:
        monkeypatch.setenv(name, "x")
    world.record()
    recorded = set(world.campaign.provenance["variables"])
    set_run(world, "depth-1", state=RunState.HELD, cause=Cause(CauseCode.MISSING_VARIABLES, ("HF_HOME", "HF_TOKEN")))
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name)
    campaigns.retry(world.store, world.campaign, None)
    assert recorded - set(world.campaign.provenance["variables"]) == {"HF_TOKEN"}
    assert [event.message for event in world.events("variables.dropped")] == ["continues without HF_TOKEN"]
