"""What status, a pass and a watch print while something is under way, away, or broken off: true at every moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from dscampaign.db import leases, queries
from dscampaign.db.errors import StoreMissing, StoreUnreachable
from dscampaign.db.records import Lease, RunStatus
from dscampaign.db.schema import attempt, lease, run, run_latest
from dscampaign.db.states import RunState
from dscampaign.orchestrator.api.passes import Obstacles, in_the_way
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.status import CampaignStatus, read_status
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.watch import interrupted, patiently, run_one_pass
from dscampaign.orchestrator.pages.actions import action_lines
from dscampaign.orchestrator.pages.status import status_page
from dscampaign.orchestrator.pages.text import Page
from dscampaign.tests.support.cli_world import World
from dscampaign.tests.support.world_on_disk import World as Disk
from dscampaign.tests.support.world_on_disk import make_world as make_disk

Output = pytest.CaptureFixture[str]


def status(world: World) -> CampaignStatus:
    with world.store.read() as conn:
        campaign = queries.campaign_by_name(conn, "sweep")
    assert campaign
    return read_status(world.store, campaign)


def page(world: World) -> str:
    return status_page(status(world), Page(False, None))


def learned(world: World, **values: Any) -> None:
    """A pass was made ten minutes ago, by a process that has ended since."""
    with world.store.write() as conn:
        name = f"reconciler:{world.campaign_id}"
        leases.acquire_lease(conn, name, "login7:4242:abc", 60.0)
        conn.execute(update(lease).values(expires_s=world.store.now(conn) - 600, **values))


def test_a_run_is_cancelling_from_the_request_until_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world.dir.parent)
    with world.store.write() as conn:
        conn.execute(update(run).where(run.c.name == "small").values(desired="cancel"))
    assert "− cancelling" in page(world)
    assert main(["explain", "small"]) == 0
    assert "− cancelling" in capsys.readouterr().out
    assert "1 pending, 1 cancelling, 1 completed, 1 failed" in page(world)
    assert main(["list"]) == 0
    assert "1 pending, 1 cancelling, 1 completed, 1 failed" in capsys.readouterr().out
    with world.store.write() as conn:
        conn.execute(update(run).where(run.c.name == "small").values(state=RunState.CANCELLED))
    assert "cancelling" not in page(world)


def test_a_new_attempt_is_silent_only_since_its_own_start(world: World) -> None:
    with world.store.write() as conn:
        now_s = world.store.now(conn)
        conn.execute(update(run_latest).values(ts_s=now_s - 7200))
        conn.execute(update(attempt).values(started_s=now_s - 60))
    assert "silent" not in page(world)
    with world.store.write() as conn:
        conn.execute(update(attempt).values(started_s=now_s - 600))
    assert "silent for 10 min" in page(world)


def test_a_controller_that_does_not_answer_is_named_with_since_when(world: World) -> None:
    learned(world, asked_s=1_000_100.0, heard_s=1_000_000.0, trouble="squeue: Unable to contact slurm controller")
    text = page(world)
    assert "Slurm has not answered for " in text
    assert ": squeue: Unable to contact slurm controller" in text
    learned(world, asked_s=1_000_100.0, heard_s=1_000_100.0, trouble="")
    assert "not answered" not in page(world)


@pytest.mark.parametrize(
    ("ago_s", "said"), [(0, "reconciled just now;"), (60, "reconciled 1 min ago;"), (600, "reconciled 10 min ago;")]
)
def test_what_has_just_been_reconciled_is_not_told_otherwise(world: World, ago_s: float, said: str) -> None:
    learned(world, asked_s=1_000_000.0)
    seen = status(world)
    assert seen.reconciler
    # its lease may have been taken and released since, by a pass that was broken off
    latest = replace(seen.reconciler, expires_s=1_000_000.0 + ago_s)
    text = status_page(replace(seen, reconciler=latest, now_s=1_000_000.0 + ago_s), Page())
    assert said in text
    assert "retries: off, " in text
    assert "; start with `campaign reconcile sweep --detach`" in text


@pytest.mark.parametrize("changed", [True, False])
def test_another_reconciler_applies_a_change_only_where_there_is_one(
    world: World, capsys: Output, changed: bool
) -> None:
    with world.store.write() as conn:
        leases.acquire_lease(conn, f"reconciler:{world.campaign_id}", "login7:4242:abc", 60.0)
    run_one_pass(world.store, status(world).campaign, changed=changed)
    assert ("it applies the change on its next pass" in capsys.readouterr().err) is changed


def test_an_interrupted_submission_says_what_it_left(world: World) -> None:
    seen = status(world)
    rows = [row._replace(state=RunState.QUEUED, job_id=f"7_{i}") for i, row in enumerate(seen.runs)]
    go_on = "`campaign reconcile sweep --watch`"
    assert interrupted(_of(seen, rows), "sweep") == f"stopped; the jobs keep running. {go_on} resumes"
    rows[0] = rows[0]._replace(state=RunState.PENDING, job_id=None)
    assert interrupted(_of(seen, rows), "sweep") == f"interrupted: 3 of 4 runs submitted. {go_on} resumes"


def _of(seen: CampaignStatus, rows: list[RunStatus]) -> CampaignStatus:
    return CampaignStatus(seen.campaign, tuple(rows), {}, Lease("", "h:1:x", 1, 0.0), seen.now_s)


def test_an_obstacle_is_said_once_and_so_is_its_end() -> None:
    now_s = [0.0]
    obstacles = Obstacles(lambda: now_s[0])
    said = []
    folder, store = {"folder": "folder away"}, {"store": "store away"}
    for seen in ({}, folder, folder, store, folder, {}, {}, folder):
        said.append(obstacles.news(seen))
        now_s[0] += 10
    assert said == [
        [],
        ["folder away"],
        [],
        ["store away"],
        [],
        ["recovered after 40 s; reconciling again"],
        [],
        ["folder away"],
    ]


def test_the_last_word_waits_for_the_store() -> None:
    answers: Iterator[Exception | str] = iter([StoreUnreachable("away"), StoreMissing("gone"), "done"])

    def read() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(read, sleep=lambda _: None) == "done"


def said_of_a_pass(world: Disk) -> list[str]:
    done = world.run_pass()
    after = {run.run_id: run for run in read_status(world.store, world.campaign).runs}
    return [*action_lines(done, after, Page()), *in_the_way(done).values()]


def test_a_run_that_completed_early_is_called_so_whether_it_is_wanted_or_not(tmp_path: Path) -> None:
    world = make_disk(tmp_path)
    world.record(train={"steps": 9})
    world.run_pass()
    campaigns.cancel(world.store, world.campaign, ["depth-2"])
    world.run_jobs()
    why = "the script exited with 0 at step 3 of 9"
    told = ("attempt 1 ended, completed early", "completed early")
    assert said_of_a_pass(world) == [f"{run}: {what}: {why}" for what in told for run in ("depth-1", "depth-2")]
    assert {run.reason for run in world.runs().values()} == {why}
    world.store.close()


def test_jobs_that_are_submitted_or_cancelled_together_are_all_named(tmp_path: Path) -> None:
    world = make_disk(tmp_path)
    world.record(matrix={"depth": list(range(8)), "slurm.nodes": [1, 2]})
    [line] = said_of_a_pass(world)
    assert line.startswith("16 runs (")
    assert line.endswith(" and 14 more): submitted as jobs 1, 2, attempt 1")
    world.run_jobs("PREEMPTED", exit_code=None)
    [line] = [line for line in said_of_a_pass(world) if "submitted" in line]
    assert ": submitted as jobs 3, 4, attempt 2: " in line
    campaigns.cancel(world.store, world.campaign, None)
    [line] = [line for line in said_of_a_pass(world) if "cancelling" in line]
    assert line.startswith("16 runs (")
    assert line.endswith(" and 14 more): cancelling jobs 3, 4")
    world.store.close()
