"""Pages and exports of a store that an earlier version has filled with times and figures that no calendar has."""

from __future__ import annotations

from pathlib import Path

import pytest

from dscampaign.db import queries, schema
from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.cli_world import World, make_world


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = make_world(tmp_path)
    with made.store.write() as conn:
        run = queries.run_by_name(conn, made.campaign_id, "done")
        assert run is not None
        said = {"tokens_per_s": 1e308, "warm_up_steps": 1e308, "step_time_median_s": 1e308}
        for kind, data in (("script.odd", {"ts": 1}), ("script.speed", said), ("forward.opened", {"tool": []})):
            queries.add_event(conn, made.campaign_id, kind, "", run_id=run.id, attempt_id=1, data=data, ts_s=1e300)
        conn.execute(schema.attempt.update().values(started_s=1e300, ended_s=1e301))
        conn.execute(schema.step_metric.update().values(ts_s=1e300, step_time_s=1e308))
        conn.execute(schema.run_latest.update().values(ts_s=1e300, step_time_s=1e308, tokens_per_s=1e308))
    return made


@pytest.mark.parametrize(
    "command",
    [
        *(["status"], ["status", "--json"], ["describe"], ["describe", "sweep", "done"], ["explain", "sweep", "done"]),
        *(["describe", "sweep", "done", "--json"], ["report", "sweep", "--json"]),
        *(["export", "--format", form, "--what", what] for form in ("csv", "json") for what in ("steps", "events")),
        *(["export", "--format", "parquet", "--what", what] for what in ("steps", "runs", "attempts", "events")),
    ],
    ids=" ".join,
)
def test_no_page_fails(world: World, tmp_path: Path, command: list[str]) -> None:
    output = ["--output", str(tmp_path / "x")] if command[0] == "export" else []
    assert main([*command, *output, "--dir", str(world.dir)]) == 0
