"""What is shown of a run that is being ended because the spec's bounds say that it cannot win."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.records import kept_every
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import make_world

NOTED = {"pruned": "a step takes 1.5 s, longer than prune.step_time_s = 1"}
"""As the reconciler notes it, from when it cancels the job until that has ended."""


@pytest.mark.parametrize("command", [["describe", "sweep", "small"], ["report", "sweep"], ["recommend", "sweep"]])
def test_a_run_that_is_being_pruned_is_shown(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = make_world(tmp_path)
    with world.store.read() as conn:
        attempt = queries.attempts(conn, world.campaign_id, world.run_id("small"))[-1]
    world.set_attempt(attempt.id, evidence=NOTED)
    assert main(command) == 0


def test_a_run_that_is_being_pruned_is_not_taken_for_thinned() -> None:
    assert kept_every([NOTED, {}]) == 1
    assert kept_every([NOTED, {"pruned": {"keep_every": 5}}]) == 5
