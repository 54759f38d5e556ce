"""What the commands say of a pass of the reconciler."""

from __future__ import annotations

from pathlib import Path

from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.cli.pages.actions import action_lines
from dscampaign.orchestrator.cli.pages.text import Page
from dscampaign.orchestrator.cli.watch import in_the_way
from dscampaign.tests.support.world_on_disk import World, make_world


def said_of_a_pass(world: World) -> list[str]:
    done = world.run_pass()
    after = {run.run_id: run for run in read_status(world.store, world.campaign).runs}
    return [*action_lines(done, after, Page()), *in_the_way(done).values()]


def test_a_retry_that_submits_nothing_says_so(tmp_path: Path) -> None:
    """The run has a job already, that of its attempt before."""
    world = make_world(tmp_path)
    world.record(matrix={"depth": [1]})
    assert said_of_a_pass(world) == ["depth-1: submitted as job 1_0, attempt 1"]
    world.run_jobs("FAILED", exit_code=1)
    folder = world.paths.run("depth-1").dir
    folder.rename(folder.with_name("aside"))
    folder.symlink_to("nowhere")
    world.run_pass()
    assert world.states() == {"depth-1": "held"}
    campaigns.retry(world.store, world.campaign, ["depth-1"])
    reason = f"the run's folder is not writable: [Errno 17] File exists: '{folder}'"
    hint = "the other runs continue; a retry starts this one again"
    assert said_of_a_pass(world) == [f"depth-1: held: {reason} · {hint}"]
    world.store.close()


def test_a_run_that_completed_early_is_called_so_whether_it_is_wanted_or_not(tmp_path: Path) -> None:
    world = make_world(tmp_path)
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
    world = make_world(tmp_path)
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
