"""One run's data is no other run's trouble: whatever it has written, the others complete, and no pass ends by it."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.states import AttemptState, RunState
from dscampaign.files import file_systems
from dscampaign.files.private_files import make_below
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.reconcile import act, decide, observe, record, stored, submit
from dscampaign.tests.support.world_on_disk import World

BAD, GOOD = "depth-1", "depth-2"


@pytest.fixture
def world(world: World) -> World:
    """Two runs, of which the first will do something odd."""
    world.record()
    return world


def folder(world: World, name: str = BAD) -> Path:
    """That of its first attempt, which its agents make."""
    made = world.paths.run(name).attempt(1).dir
    make_below(world.paths.runs, made)
    return made


def raising_for(name: str, error: Exception, real: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """The function, but for what concerns the run of that name, as its argument at that place tells."""

    def wrapped(*args: Any, **options: Any) -> Any:
        if name in repr(args[at]):
            raise error
        return real(*args, **options)

    return wrapped


def test_any_line_of_a_script_is_ingested_or_set_aside(world: World) -> None:
    world.run_pass()
    with (folder(world) / "metrics.jsonl").open("w") as spool:
        spool.write('{"event": "target", "steps": 1e400}\n{"event": "target", "steps": 1180591620717411303424}\n')
    (folder(world) / "gpus-0.jsonl").write_text('{"devices": [{"gpu": 0, "name": "\\ud800\\u0000"}], "ts": 1e300}\n')
    (folder(world) / "forward.jsonl").write_text('{"event": "opened", "ts": 1e300, "message": {}}\n')
    world.run_jobs()
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}


WHEN = {"started_s": 1.0, "ended_s": 2.0, "start_step": 0, "last_step": 3}
WHO = {"generation": 1, "job_id": "1_0", "node_rank": 0, "host": "n", "launcher_exit": 0, "ended_by": ""}
OUTCOME = {**WHO, **WHEN, "ranks": []}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("[" * 100_000, "not JSON"),
        (json.dumps({**OUTCOME, "started_s": "x"}), "started_s"),
        (json.dumps({**OUTCOME, "start_step": 10**30}), "start_step"),
        (json.dumps({**OUTCOME, "ranks": [{"rank": 0, "exit": 1, "error": {"type": "X"}}]}), "Field required"),
        (None, "Not a regular file"),
    ],
)
def test_an_outcome_that_cannot_be_read_holds_its_run(world: World, text: str | None, why: str) -> None:
    world.run_pass()
    world.run_jobs()
    outcome = folder(world) / "outcome-0.json"
    outcome.unlink()
    if text is None:
        os.mkfifo(outcome)
    else:
        outcome.write_text(text)
    assert world.run_pass().troubles == ()
    assert world.states() == {BAD: "held", GOOD: "completed"}
    assert why in world.runs()[BAD].reason
    assert len(world.events("unjudged")) == 1
    assert len(world.attempts(BAD)) == 1
    assert world.attempts(BAD)[0].last_step == 3
    assert world.run_pass().settled  # and it stays so
    campaigns.retry(world.store, world.campaign, [BAD])
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}


@pytest.mark.parametrize("broken", ["folder", "pipe"])
def test_an_unreadable_spool_is_reported_once_and_passed_over(world: World, broken: str) -> None:
    world.run_pass()
    world.run_jobs()
    spool = folder(world) / "metrics.jsonl"
    spool.unlink()
    spool.mkdir() if broken == "folder" else os.mkfifo(spool)
    (folder(world) / "gpus-0.jsonl").write_text('{"event": "tick"}\n')
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}
    assert len(world.events("spool.unreadable")) == 1
    assert len(world.events("gpu.tick")) == 1


@pytest.mark.parametrize(
    ("module", "name"),
    [(observe, "_run_view"), (stored, "run_config"), (decide, "transitions"), (decide, "_follow_up")],
)
def test_a_mistake_of_ours_about_one_run_is_that_run_s(
    world: World, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    world.run_pass()
    world.run_jobs()
    with monkeypatch.context() as patch:
        error = KeyError("no such thing")
        patch.setattr(module, name, raising_for(f"name='{BAD}'", error, getattr(module, name)))
        for _ in range(6):
            done = world.run_pass()
        assert done.settled
        assert world.states() == {BAD: "held", GOOD: "completed"}
        assert "KeyError: 'no such thing' (test_isolation.py:" in world.runs()[BAD].reason
    campaigns.retry(world.store, world.campaign, [BAD])
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("moment", ["submit", "end"])
def test_a_run_whose_own_folder_fails_keeps_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, code: int
) -> None:
    """Also where the error could be the whole file system's; what may pass is waited for."""
    module, name, at = (submit, "make_below", 1) if moment == "submit" else (act, "is_claimed", 0)
    folder(world)  # as a store that has since been deleted may have left it
    with monkeypatch.context() as patch:
        failed = OSError(code, os.strerror(code))
        patch.setattr(module, name, raising_for(f"runs/{BAD}", failed, getattr(module, name), at))
        for _ in range(5):
            done = world.run_pass()
            world.run_jobs()
        assert world.states()[GOOD] == "completed"
        if code != errno.EACCES:
            assert str(done.troubles[0]).startswith(f"run {BAD} cannot be judged: ")
            assert os.strerror(code) in str(done.troubles[0])
            assert world.events("unjudged") == []
        else:
            assert done.settled
    if code != errno.EACCES:
        world.settle()
        assert world.states() == {BAD: "completed", GOOD: "completed"}


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("moment", ["submit", "end"])
def test_a_folder_that_fails_as_a_whole_is_no_run_s_fault(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, code: int
) -> None:
    """No run is set aside, and none ended whose claim was not taken: a job could still start it."""
    if moment == "end":
        world.run_pass()
        world.run_jobs()
    before = world.states()

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(file_systems, "try_writing", fail)
        patch.setattr(submit, "make_below", fail)
        patch.setattr(act, "is_claimed", fail)
        for _ in range(5):
            [trouble] = world.run_pass().troubles
            assert str(trouble).startswith("the shared folder is not writable: ")
    assert world.states() == {name: "pending" if moment == "submit" else state for name, state in before.items()}
    assert world.events("unjudged") == []
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}


def test_a_run_that_cannot_be_judged_can_be_cancelled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run_pass()
    campaigns.cancel(world.store, world.campaign, [BAD])
    monkeypatch.setattr(observe, "_run_view", raising_for(f"name='{BAD}'", KeyError("x"), observe._run_view))
    for _ in range(6):
        world.run_pass()
    assert len(world.cluster.cancelled) == 1
    assert world.states()[BAD] == "cancelled"


@pytest.mark.parametrize("error", [StaleLease("taken"), StoreUnreachable("away")])
def test_a_lost_lease_or_store_ends_the_pass(world: World, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    world.run_pass()
    world.run_jobs()
    part = record._Changes
    monkeypatch.setattr(part, "_finish", raising_for(f"runs/{BAD}/", error, part._finish, 1))
    with pytest.raises(type(error)):
        world.run_pass()
    assert world.states() == {BAD: "queued", GOOD: "queued"}


def test_an_unexpected_error_of_an_executor_is_reported(world: World) -> None:
    """Nobody knows whether there is a job then."""

    def odd(_: object) -> None:
        raise ValueError("embedded null byte")

    world.cluster.on_submit = odd
    [trouble] = world.run_pass().troubles
    assert "embedded null byte" in str(trouble)
    assert len(world.events("submission.unclear")) == 2
    world.cluster.on_submit = lambda _: None
    world.settle()
    assert world.states() == {BAD: "completed", GOOD: "completed"}


@pytest.mark.parametrize("module", ["submitit", "dscampaign.orchestrator.failures.classify"])
def test_a_module_that_is_away_is_no_run_s_fault(world: World, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """While an environment is being updated, what is loaded late cannot be: neither refused nor held is right then."""
    slurm = SlurmExecutor(world.paths.batches)
    if module == "submitit":
        world.cluster.on_submit = lambda batch: (slurm.submit(batch), None)[1]
    else:
        world.run_pass()
        world.run_jobs()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, module, None)
        for _ in range(4):
            with suppress(Unreachable):
                assert world.run_pass().troubles
            assert set(world.states().values()) <= {RunState.PENDING, RunState.QUEUED}
    world.cluster.on_submit = lambda _: None
    world.settle()
    assert world.states() == {BAD: RunState.COMPLETED, GOOD: RunState.COMPLETED}
    assert [attempt.state for name in (BAD, GOOD) for attempt in world.attempts(name)] == [AttemptState.COMPLETED] * 2
