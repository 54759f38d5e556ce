"""The terminal view, driven by keys on screens of two sizes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Log, Static

from dscampaign.db import bulk, queries
from dscampaign.db.errors import StoreUnreachable
from dscampaign.db.records import NewRun
from dscampaign.db.series import Curve
from dscampaign.db.states import RunState
from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.live.model import Changes, LiveStore
from dscampaign.orchestrator.live.rows import Rows
from dscampaign.orchestrator.live.top import Top, view_of
from dscampaign.tests.support.cli_world import CONFIG, World, make_world

SMALL, LARGE = (80, 24), (140, 40)
Size = tuple[int, int]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path)


def drive(app: Top, steps: Callable[[Pilot[None]], Awaitable[None]], size: Size = SMALL) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await read(pilot)
            await steps(pilot)

    asyncio.run(run())


async def read(pilot: Pilot[None]) -> None:
    """Wait for a look at the store that begins now."""
    app = pilot.app
    assert isinstance(app, Top)
    for _ in range(2):  # the first may have begun before
        await app.look().wait()
    await pilot.pause()


def lines(pilot: Pilot[None], table: str = "#runs") -> list[str]:
    rows = pilot.app.query_one(table, Rows)
    return [rows.render_line(y).text.rstrip() for y in range(min(rows.size.height, len(rows.rows) + 1))]


def shown(pilot: Pilot[None], part: str) -> str:
    return str(pilot.app.screen.query_one(part, Static).content)


def names(pilot: Pilot[None]) -> list[str]:
    return [row.name for row in pilot.app.query_one("#runs", Rows).rows]


def at(pilot: Pilot[None]) -> str:
    row = pilot.app.query_one("#runs", Rows).row
    assert row
    return str(row.name)


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (SMALL, ["run▴", "state", "step", "loss", "loss", "curve", "tok/s"]),
        (LARGE, ["run▴", "state", "step", "loss", "loss", "curve", "tok/s", "memory", "left", "tries", "why"]),
    ],
)
def test_runs_have_the_columns_that_fit(world: World, size: Size, header: list[str]) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        first, *rows = lines(pilot)
        assert first.split()[: len(header)] == header
        assert max(map(len, (first, *rows))) <= size[0]
        assert [row.split()[:3] for row in rows] == [
            ["done", "✓", "completed"],
            ["small", "▶", "running"],
            ["bad", "✗", "failed"],
            ["new", "·", "pending"],
        ]
        assert "█" in rows[0]
        assert "48.2k" in rows[0]
        assert "1 completed, 1 failed · end unknown\nretries: off, not reconciled yet" in shown(pilot, "#headline")
        assert "bad  attempt 1: deterministic" in shown(pilot, "#events")
        await pilot.press("down", "down")
        await pilot.pause()
        assert "bad · job 7_2" in shown(pilot, "#detail")
        assert "KeyError: 'x'[bold] · look at x" in shown(pilot, "#detail")

    drive(view_of(world.store, None), steps, size)


def test_keys_sort_and_filter(world: World) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("s")
        assert names(pilot) == ["bad", "small", "new", "done"]
        assert "state▴" in lines(pilot)[0]
        await pilot.press("s", "s")
        assert names(pilot)[0] == "done"
        assert "loss▴" in lines(pilot)[0]
        await pilot.press("slash", *"KEY", "space", *"fail")
        await pilot.pause()
        assert names(pilot) == ["bad"]
        await pilot.press("enter", "down")
        assert names(pilot) == ["bad"]
        assert pilot.app.query_one(Input).display
        await pilot.press("slash", *"zzz")
        await pilot.pause()
        assert names(pilot) == []
        assert shown(pilot, "#detail") == "no run matches"
        await pilot.press("escape")
        await pilot.pause()
        assert len(names(pilot)) == 4
        await pilot.press("q")
        assert not pilot.app.is_running or pilot.app._exit

    drive(view_of(world.store, None), steps)


def test_a_change_in_the_store_is_shown_and_the_cursor_stays_on_its_run(world: World) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("s", "end")
        assert at(pilot) == "done"
        world.set_run("done", state=RunState.HELD, reason="the quota is used up")
        with world.store.write() as conn:
            queries.add_event(conn, world.campaign_id, "held", "no quota is left", run_id=world.run_id("done"))
        await read(pilot)
        assert names(pilot) == ["bad", "done", "small", "new"]
        assert at(pilot) == "done"
        assert "the quota is used up" in shown(pilot, "#detail")
        assert "1 held" in shown(pilot, "#headline")
        assert "no quota is left" in shown(pilot, "#events")

    drive(view_of(world.store, None), steps)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.nightly)])
def test_enter_opens_a_run_whose_log_is_followed(world: World, size: Size) -> None:
    log = world.attempt_paths("small", 2).logs / "r_rank0.log"
    log.write_text("first \x1b[2J[red]line\r\nsecond")

    async def text(pilot: Pilot[None], part: str, wanted: str) -> None:
        for _ in range(100):
            widget = pilot.app.screen.query_one(part)
            now = "\n".join(widget.lines) if isinstance(widget, Log) else str(widget.content)  # type: ignore[attr-defined]
            if wanted in now:
                return
            await pilot.pause(0.1)
        raise AssertionError(now)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("down", "enter")
        await text(pilot, "#explanation-text", "small of sweep")
        await pilot.press("c")
        await text(pilot, "#configuration-text", "global_batch: 64")
        await pilot.press("l")
        await text(pilot, "#lines", "first [red]line\nsecond")
        with log.open("a") as stream:
            stream.write("\nthird\n")
        await text(pilot, "#lines", "second\nthird\n")
        await pilot.press("escape")
        assert len(pilot.app.screen_stack) == 1

    drive(view_of(world.store, None), steps, size)


def test_hostile_names_are_shown_as_they_are(world: World) -> None:
    hostile = "[@click=app.quit]x[/] \x1b]0;title\x07\u202e" + "字" * 30
    with world.store.write() as conn:
        bulk.insert_runs(conn, world.campaign_id, [NewRun(hostile, {}, CONFIG, "x", 9)])
        run = queries.run_by_name(conn, world.campaign_id, hostile)
        assert run
        queries.update_run(conn, run.id, reason="[blink]\x1b[2J" + "\U0001f600" * 40)
        queries.add_event(conn, world.campaign_id, "x", "[b]\x1b[31m" + hostile, run_id=run.id)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        await pilot.pause()
        texts = [*lines(pilot), shown(pilot, "#detail"), shown(pilot, "#events"), shown(pilot, "#headline")]
        assert "[@click" in texts[5]
        assert "[@click=app.quit]x[/]" in shown(pilot, "#detail")
        assert not any(mark in text for text in texts for mark in "\x1b\x07\u202e")
        assert {pilot.app.query_one("#runs", Rows).render_line(5).cell_length} == {80}
        await pilot.press("enter")
        await pilot.pause()
        assert "[@click=app.quit]x[/]" in shown(pilot, "#title")

    drive(view_of(world.store, None), steps)


def test_campaigns_are_listed_and_enter_shows_one(world: World) -> None:
    with world.store.write() as conn:
        other = queries.insert_campaign(
            conn, name="other", spec="", spec_hash="o", dir=str(world.dir), executor="slurm", provenance={}
        )
        bulk.insert_runs(conn, other, [NewRun("lone", {}, CONFIG, "l", 0)])

    async def steps(pilot: Pilot[None]) -> None:
        assert [line.split()[0] for line in lines(pilot, "#campaigns")] == ["campaign", "other", "sweep"]
        assert names(pilot) == ["lone"]
        await pilot.press("tab", "down", "enter")
        await read(pilot)
        assert names(pilot) == ["done", "small", "bad", "new"]

    drive(view_of(world.store, None), steps)


def test_a_store_that_is_away_is_reported_until_it_is_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(pilot: Pilot[None]) -> None:
        def away(*_: object) -> Changes:
            raise StoreUnreachable("the store does not respond", "try again")

        with monkeypatch.context() as patched:
            patched.setattr(LiveStore, "runs", away)
            await read(pilot)
            assert "the store does not respond" in shown(pilot, "#headline")
            assert len(names(pilot)) == 4
        await read(pilot)
        assert "4 runs" in shown(pilot, "#headline")

    drive(view_of(world.store, None), steps)


class Many(LiveStore):
    """Ten thousand runs."""

    asked = 0

    def runs(self, campaign: str | None, since: int = 0) -> Changes:
        found = super().runs(campaign, since)
        runs = [
            row._replace(run=row.run._replace(run_id=n, name=f"run-{n}"), title=f"run {n}")
            for row in found.runs[:1]
            for n in range(10_000)
        ]
        return found._replace(runs=runs)

    def curves(self, campaign: str | None, runs: Collection[str], points: int = 60) -> dict[str, Curve]:  # noqa: ARG002
        self.asked = max(self.asked, len(runs))
        return {}


def test_ten_thousand_rows_cost_only_those_in_sight(world: World) -> None:
    store = Many(world.store)

    async def steps(pilot: Pilot[None]) -> None:
        await pilot.press("end")
        await pilot.pause()
        assert lines(pilot)[-1].split()[:2] == ["run", "9999"]
        await pilot.press("pageup", "slash", *"9876")
        await pilot.pause()
        assert names(pilot) == ["run-9876"]
        assert lines(pilot)[1].split()[:2] == ["run", "9876"]
        assert store.asked <= SMALL[1]

    drive(Top(store, "sweep"), steps)


def test_it_needs_a_terminal_and_its_extra(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world.dir.parent)
    assert main(["top", "sweep"]) == 2
    assert (
        capsys.readouterr().err == "error: this needs a terminal\nhint: `campaign status sweep --watch` writes lines\n"
    )
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for module in ("top", "rows", "top_run"):
        monkeypatch.delitem(sys.modules, f"dscampaign.orchestrator.live.{module}", raising=False)
    for missing in ("textual", "rich.text"):
        monkeypatch.setitem(sys.modules, missing, None)
        assert main(["top", "sweep"]) == 2
        assert "pip install 'dscampaign[live]'" in capsys.readouterr().err
