"""Where a run is in other tools, as pages and documents show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import World, make_world

Output = pytest.CaptureFixture[str]
URL = "https://wandb.example.org/t/sweep/runs/abc"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A campaign of which one run was opened twice in W&B, as attempts do, and once in MLflow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    made = make_world(tmp_path)
    for tool, run_id, where in (("wandb", "abc", "/offline"), ("mlflow", "m1", "sqlite:///x"), ("wandb", "abc", URL)):
        data = {"tool": tool, "run_id": run_id, "where": where}
        with made.store.write() as conn:
            queries.add_event(
                conn, made.campaign_id, "forward.opened", f"{tool}: {run_id}", run_id=made.run_id("done"), data=data
            )
    return made


@pytest.mark.usefixtures("world")
def test_the_page_of_a_run_says_where_else_it_is(capsys: Output) -> None:
    assert main(["describe", "sweep", "done"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["wandb", f"run abc, {URL}"] in lines
    assert ["mlflow", "run m1, sqlite:///x"] in lines
