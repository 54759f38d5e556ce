"""`campaign reconcile --all-campaigns`: lines with the campaign's name, one exit code for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_UNSETTLED
from dscampaign.orchestrator.reconcile import loop
from dscampaign.tests.support.world_on_disk import World, make_world

Output = pytest.CaptureFixture[str]
NAMES = ("first", "second")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Two campaigns of one run each, which nobody has begun."""
    made = make_world(tmp_path)
    for name in NAMES:
        made.record(name=name, matrix={"depth": [1]})
    monkeypatch.setattr(loop, "make_executor", lambda *_: made.cluster)
    yield made
    made.store.close()


def reconcile(world: World, *words: str) -> int:
    return main(["reconcile", "--all-campaigns", "--dir", str(world.folder), *words])


def run_jobs(world: World, name: str, exit_code: int = 0) -> None:
    replace(world, name=name).run_jobs(exit_code=exit_code)


def test_a_round_says_of_which_campaign_each_line_is(world: World, capsys: Output) -> None:
    assert reconcile(world) == EXIT_UNSETTLED
    said, shown = capsys.readouterr().err.splitlines(), [*NAMES]
    assert all(line.split(":")[0] in NAMES for line in said)
    assert {line.split(":")[0] for line in said} == set(shown)
    for name in NAMES:
        run_jobs(world, name)
    assert reconcile(world) == EXIT_OK
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == shown


def test_one_failed_run_decides_the_exit_code(world: World, capsys: Output) -> None:
    reconcile(world)
    run_jobs(world, "first", exit_code=2)
    run_jobs(world, "second")
    for _ in range(4):
        code = reconcile(world)
        run_jobs(world, "first", exit_code=2)
        if code != EXIT_UNSETTLED:
            break
    assert code == EXIT_FAILED
    assert reconcile(world) == EXIT_OK  # nothing was left to be done
    assert "every campaign is settled" in capsys.readouterr().err


def test_a_campaign_whose_folder_is_away_is_said_and_the_other_goes_on(world: World, capsys: Output) -> None:
    reconcile(world)
    (world.folder / "first").rename(world.folder / "away")
    capsys.readouterr()
    run_jobs(world, "second")
    assert reconcile(world, "--json") == EXIT_UNREACHABLE
    found = capsys.readouterr()
    assert "first: " in found.err
    document = json.loads(found.out)
    assert {each["campaign"]: each["settled"] for each in document["campaigns"]} == {"first": False, "second": True}
