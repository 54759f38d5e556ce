"""Values become text, also those that no calendar has."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from dscampaign.db import queries, schema
from dscampaign.orchestrator.campaign.status import read_status
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.cli.watch import Display
from dscampaign.orchestrator.formatting import count, duration, figure, short_number
from dscampaign.orchestrator.pages.status import status_page
from dscampaign.orchestrator.pages.text import Cell, Page, Style, table
from dscampaign.tests.support.cli_world import World, make_world

PLAIN = Page()


def test_a_table_lines_up_whatever_its_colours() -> None:
    rows: list[list[Cell | str]] = [[Cell("a", Style.RED), "1,000", ""], ["longer", "2", ""]]
    assert table(PLAIN, ("name", "n", "empty"), rows, "-r-") == ["NAME        N", "a       1,000", "longer      2"]
    coloured = table(Page(colour=True), ("name", "n", "empty"), rows, "-r-")
    assert coloured[1] == "\x1b[31ma     \x1b[0m  1,000"


def test_a_narrow_page_continues_text_and_then_loses_whole_columns() -> None:
    rows: list[list[Cell | str]] = [["name", "3.34k", "11.5 GB", "a long reason"]]
    tables = {
        width: table(Page(width=width), ("run", "speed", "memory", "why"), rows, "-rrw", ("memory", "speed"))[1:]
        for width in (40, 28, 20, 12)
    }
    assert tables == {
        40: ["name  3.34k  11.5 GB  a long reason"],
        28: ["name  3.34k  a long reason"],
        20: ["name  a long reason"],
        12: ["name  a long", "      reason"],
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (106, "1 min 46 s"),
        (770, "13 min"),
        (3599.6, "1 h"),
        (5400, "1 h 30 min"),
        (90000, "1 d 1 h"),
        (-3, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers() -> None:
    assert [figure(v) for v in (None, 3.14159, float("nan"), 0.00012345, 123456.0)] == [
        "", "3.142", "nan", "0.0001234", "123,456",
    ]  # fmt: skip
    assert [short_number(v) for v in (None, 950.0, 48231.0, 1.5e6)] == ["", "950", "48.2k", "1.5M"]
    assert [short_number(v) for v in (999.4, 999.9, 999_960.0)] == ["999", "1k", "1M"]
    assert [short_number(v) for v in (999.9e9, 1.25e13, 1e15)] == ["1T", "12.5T", "1e+15"]
    assert [figure(v, 3) for v in (0.12345, 999.4, 999.6, 12_346.4, 3.2e12)] == [
        *("0.123", "999", "1,000", "12,346"),
        "3.2e+12",
    ]
    assert [count(1, "run"), count(1200, "run"), count(2, "batch")] == ["1 run", "1,200 runs", "2 batches"]


def test_a_page_that_is_too_long_keeps_what_is_at_work(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    with world.store.read() as conn:
        campaign = queries.list_campaigns(conn)[0]
    page = status_page(read_status(world.store, campaign), PLAIN, height=11)
    assert "small" in page
    assert "… and 3 more runs" in page
    assert "done" not in page


def test_a_live_table_is_redrawn_in_place_below_what_scrolls_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINES", "6")
    world, out = make_world(tmp_path), io.StringIO()
    with world.store.read() as conn:
        campaign = queries.list_campaigns(conn)[0]
    with Display(out, live=True) as table:
        table.update(read_status(world.store, campaign))
        first = out.getvalue()
        assert first.count("\n") == 5  # one line less than the screen has
        table.say(["what stays", ""])
    said, cleared = out.getvalue().removeprefix(first).split("\x1b[5F\x1b[J")[1:]
    assert said.partition("\n")[0].endswith(" what stays")
    assert said.partition("\n\n")[2] == first.removeprefix("\x1b[J")
    assert "\n" not in cleared


@pytest.fixture
def odd(world: World) -> World:
    with world.store.write() as conn:
        run = queries.run_by_name(conn, world.campaign_id, "done")
        assert run is not None
        said = {"tokens_per_s": 1e308, "warm_up_steps": 1e308, "step_time_median_s": 1e308}
        for kind, data in (("script.odd", {"ts": 1}), ("script.speed", said), ("forward.opened", {"tool": []})):
            queries.add_event(conn, world.campaign_id, kind, "", run_id=run.id, attempt_id=1, data=data, ts_s=1e300)
        conn.execute(schema.attempt.update().values(started_s=1e300, ended_s=1e301))
        conn.execute(schema.step_metric.update().values(ts_s=1e300, step_time_s=1e308))
        conn.execute(schema.run_latest.update().values(ts_s=1e300, step_time_s=1e308, tokens_per_s=1e308))
    return world


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
def test_no_page_fails(odd: World, tmp_path: Path, command: list[str]) -> None:
    output = ["--output", str(tmp_path / "x")] if command[0] == "export" else []
    assert main([*command, *output, "--dir", str(odd.dir)]) == 0
