"""What a user may want, as changes of what is desired."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db import queries
from dscampaign.db.states import ABSENT, AttemptState, Cause, CauseCode, RunState
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.documents import status_document
from dscampaign.orchestrator.campaign.plan import make_plan
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.cli.pages.plan import plan_page
from dscampaign.orchestrator.cli.pages.status import status_page
from dscampaign.orchestrator.cli.pages.text import Page
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.tests.support.world_on_disk import SPEC, World, make_world
from dscampaign.tests.support.worlds import new_attempt


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


def test_descriptive_fields_may_change_while_a_run_exists(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.RUNNING)
    world.record(retry={"crash": 7, "backoff_s": 0})
    assert world.runs()["depth-1"].config["retry"]["crash"] == 7
    assert world.runs()["depth-1"].state is RunState.RUNNING


def test_a_run_that_has_completed_keeps_the_configuration_that_it_ran_with(world: World) -> None:
    world.record(slurm={**SPEC["slurm"], "partition": "a100"})
    set_run(world, "depth-1", state=RunState.COMPLETED)
    world.record(slurm={**SPEC["slurm"], "partition": "h100"}, train={"steps": 3, "keep_checkpoints": 7})
    assert {run.config["train"]["keep_checkpoints"] for run in world.runs().values()} == {7}  # it is yet to be deleted
    assert {name: run.config["slurm"]["partition"] for name, run in world.runs().items()} == {
        "depth-1": "a100",
        "depth-2": "h100",
    }


def test_a_failed_run_is_cancelled_too_though_there_is_nothing_to_end(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.FAILED, reason="x")
    assert [run.name for run in campaigns.cancel(world.store, world.campaign, None)] == ["depth-2"]
    failed = world.runs()["depth-1"]
    assert (failed.desired, failed.state, failed.reason) == ("cancel", RunState.FAILED, "x")
    assert [run.name for run in campaigns.retry(world.store, world.campaign, None)] == ["depth-1"]


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


def test_runs_that_leave_the_spec_are_unwanted_but_kept(world: World) -> None:
    world.record()
    world.record(matrix={"depth": [2, 3]})
    assert {name: run.desired for name, run in world.runs().items()} == {
        "depth-1": ABSENT,
        "depth-2": "run",
        "depth-3": "run",
    }
    assert [run.ordinal for name, run in world.runs().items() if name != "depth-1"] == [0, 1]


def test_limits_and_equal_fields_may_change(world: World) -> None:
    world.record(objective="loss", loss_margin=0.05)
    assert [world.campaign.provenance[name] for name in ("objective", "loss_margin")] == ["loss", 0.05]
    before = {name: run.config_hash for name, run in world.runs().items()}
    world.record(loss_margin=0.02, baseline={"train.depth": 2})
    assert world.campaign.provenance["baseline"] == {"depth": 2}
    assert {name: run.config_hash for name, run in world.runs().items()} == before
    assert [world.campaign.provenance[name] for name in ("objective", "loss_margin")] == [None, 0.02]


def test_a_campaign_stays_where_it_is(world: World, tmp_path: Path) -> None:
    world.record()
    elsewhere = campaigns.Submission(**{**vars(world.submission()), "dir": tmp_path / "other"})
    with pytest.raises(UserError, match="lives in") as caught:
        campaigns.record(world.store, elsewhere)
    assert f"--dir {world.folder}" in (caught.value.hint or "")
    with pytest.raises(UserError, match="runs on slurm, the spec says local"):
        world.record(executor="local", slurm={})


def test_a_refused_submission_changes_nothing(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.RUNNING)
    before = world.runs()
    with pytest.raises(UserError, match="its experiment has changed"):
        world.record(train={"steps": 9})
    assert world.runs() == before


def test_folders_are_for_the_user_alone(world: World, tmp_path: Path) -> None:
    campaigns.record(world.store, campaigns.Submission(**{**vars(world.submission()), "dir": tmp_path / "a" / "b"}))
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b")] == [0o700, 0o700]


# -- cancel and retry --------------------------------------------------------------------------------------------


def test_cancel_marks_unended_runs_once(world: World) -> None:
    world.record()
    set_run(world, "depth-2", state=RunState.COMPLETED)
    for _ in range(2):  # whoever asks again, as after an interruption, sees to it again
        assert [run.name for run in campaigns.cancel(world.store, world.campaign, None)] == ["depth-1"]
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
        return campaigns.what_retries(world.store, world.campaign, names, cancelled=cancelled).text

    left = "1 completed, 1 screened, 1 no longer in the spec"
    assert text(None) == f"retrying 2 runs: 1 failed, 1 held\nunchanged: 1 cancelled, {left}"
    assert text(None, cancelled=True) == f"retrying 3 runs: 1 failed, 1 held, 1 cancelled\nunchanged: {left}"
    named = [f"depth-{depth}" for depth in (4, 5, 6)]
    assert text(named) == "retrying 2 runs: 1 screened, 1 no longer in the spec\nunchanged: 1 completed"
    assert text([]) == "nothing to retry"
    found = campaigns.what_retries(world.store, world.campaign, ["depth-1", "depth-6"], unnamed=False)
    assert ([run.name for run in found.again], found.may_follow) == (
        ["depth-1"],
        ("RUN", "for a run that is no longer in the spec"),
    )


def test_a_cancellation_lists_the_runs_that_end_and_the_rest(world: World) -> None:
    world.record(matrix={"depth": [1, 2, 3, 4]})
    for depth, state in enumerate(("queued", "failed", "cancelled", "completed"), 1):
        set_run(world, f"depth-{depth}", state=RunState(state))

    def text(*depths: int) -> str:
        names = [f"depth-{depth}" for depth in depths]
        return campaigns.what_cancels(world.store, world.campaign, names or None).text

    assert text() == "cancelling 1 run\nno further attempt: 1 failed\nunchanged: 1 cancelled, 1 completed"
    assert text(1) == "cancelling 1 run"
    assert text(2) == "no job to cancel: depth-2 is already failed\nno further attempt: 1 failed"
    assert text(3, 4) == "nothing to cancel: no chosen run is queued or running"
    campaigns.cancel(world.store, world.campaign, None)
    assert text(2) == "nothing to cancel: depth-2 is already failed"


def test_the_next_command_after_a_retry_fits_the_rest(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.COMPLETED)
    set_run(world, "depth-2", state=RunState.QUEUED, desired="cancel")
    found = campaigns.what_retries(world.store, world.campaign, None)
    assert (found.text, found.may_follow) == ("nothing to retry\nunchanged: 1 completed, 1 cancelling", None)
    with pytest.raises(UserError, match="run depth-2 is cancelling") as caught:
        campaigns.retry(world.store, world.campaign, ["depth-2"])
    assert caught.value.hint == "it can be retried once it has ended"


def test_a_run_that_completed_early_is_retried_by_name(world: World) -> None:
    world.record(matrix={"depth": [1]})
    run = world.runs()["depth-1"]
    with world.store.write() as conn:
        attempt_id = queries.insert_attempts(conn, [new_attempt(run.id, 1, run.config_hash)])[0]
        ended = {"state": AttemptState.COMPLETED, "failure_class": FailureClass.COMPLETED_EARLY}
        queries.update_attempt(conn, attempt_id, **ended)
    set_run(world, "depth-1", state=RunState.COMPLETED)
    status = read_status(world.store, world.campaign)
    assert (status.early, status.runs[0].early) == (1, True)
    page = status_page(status, Page())
    assert "1 completed (1 early)" in page
    assert "✓ completed early" in page
    assert status_document(world.store, world.campaign)["runs"][0]["completed_early"] is True
    assert [item.why for item in make_plan(world.store, world.submission(matrix={"depth": [1]})).runs] == [
        "completed early"
    ]
    assert campaigns.retry(world.store, world.campaign, None) == []
    assert [run.name for run in campaigns.retry(world.store, world.campaign, ["depth-1"])] == ["depth-1"]
    assert world.runs()["depth-1"].state is RunState.PENDING
    world.run_pass()
    assert [attempt.generation for attempt in world.attempts("depth-1")] == [1, 2]


def test_retry_of_all_skips_runs_outside_the_spec(world: World) -> None:
    world.record()
    set_run(world, "depth-1", state=RunState.FAILED)
    world.record(matrix={"depth": [2]})
    assert campaigns.retry(world.store, world.campaign, None) == []
    assert [run.name for run in campaigns.retry(world.store, world.campaign, ["depth-1"])] == ["depth-1"]


def test_a_run_outside_the_spec_stays_marked(world: World) -> None:
    """Whatever its user does with it; once a spec names it again, it is like any other."""
    world.record()
    set_run(world, "depth-1", state=RunState.FAILED)
    world.record(matrix={"depth": [2]})
    campaigns.retry(world.store, world.campaign, ["depth-1"])
    world.run_pass()
    assert world.runs()["depth-1"].state is RunState.QUEUED
    assert [run.name for run in campaigns.cancel(world.store, world.campaign, ["depth-1"])] == ["depth-1"]
    for _ in range(3):
        world.run_pass()
    assert world.runs()["depth-1"].state is RunState.CANCELLED
    assert campaigns.retry(world.store, world.campaign, None) == []
    found = campaigns.what_retries(world.store, world.campaign, None, cancelled=True)
    assert (found.again, [run.name for run in found.left if run.desired == ABSENT]) == ([], ["depth-1"])
    campaigns.retry(world.store, world.campaign, ["depth-1"])
    world.run_pass()
    world.record()
    named = world.runs()["depth-1"]
    assert (named.state, named.desired) == (RunState.QUEUED, "run")


def test_the_plan_names_the_command_for_new_code(world: World) -> None:
    script = world.folder / "train.py"
    script.write_text("pass\n")
    world.record()
    world.run_pass()
    script.write_text("print()\n")
    [note] = [one for one in make_plan(world.store, world.submission()).notes if "older code" in one]
    retry = "`campaign retry c RUN`, once it has ended, makes a run use the new code"
    assert note == f"2 runs keep older code (changed since: train.py); {retry}"


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
    notes = make_plan(world.store, world.submission(**changes)).notes
    assert any("nothing in `command` uses the seed" in note for note in notes) is remarked


def test_the_plan_shows_the_state_after_a_cancellation(world: World) -> None:
    world.record()
    world.run_pass()
    campaigns.cancel(world.store, world.campaign, ["depth-1"])
    plan = make_plan(world.store, world.submission())
    assert [(item.name, item.why) for item in plan.runs] == [("depth-1", "cancelling"), ("depth-2", "queued")]
    assert "cancelled, not submitted again: depth-1 (`campaign retry c depth-1`)" in plan_page(plan, Page())


def test_repeats_of_a_point_that_was_removed_share_a_row(world: World) -> None:
    world.record(repeats=3)
    world.run_pass()
    rows = [line.split() for line in plan_page(make_plan(world.store, world.submission()), Page()).splitlines()]
    removed = [row for row in rows if row[:1] == ["-"]]
    assert [row[1:4] for row in removed] == [["depth-1-r1", "×", "2"], ["depth-2-r1", "×", "2"]]


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
