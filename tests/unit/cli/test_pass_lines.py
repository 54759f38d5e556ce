"""What the commands say of a pass of the reconciler."""

from __future__ import annotations

from pathlib import Path

from dscampaign.orchestrator.api.passes import in_the_way
from dscampaign.orchestrator.campaign import desired as campaigns
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.pages.actions import action_lines
from dscampaign.orchestrator.pages.text import Page
from dscampaign.tests.support.world_on_disk import World, make_world


def said_of_a_pass(world: World) -> list[str]:
    done = world.run_pass()
    after = {run.run_id: run for run in read_status(world.store, world.campaign).runs}
    return [*action_lines(done, after, Page()), *in_the_way(done).values()]


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
