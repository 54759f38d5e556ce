"""A report that follows its campaign: written again when a run has changed, until every run is settled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.errors import StoreUnreachable
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.status import CampaignStatus, read_status
from dscampaign.orchestrator.cli import watch
from dscampaign.orchestrator.errors import EXIT_INTERRUPTED
from dscampaign.tests.support.planted import Planted, Try, plant
from dscampaign.tests.support.waiting import wait_until

BEGUN = Planted("begun", (0.1,), (3.0,), state=RunState.PENDING, tries=(Try(last=0, ended=None),))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One with a campaign that is not settled."""
    opened = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)
    plant(opened, tmp_path, [Planted("base", (0.1,), (3.0,)), BEGUN])
    return opened


def campaign_of(store: Store) -> CampaignRow:
    with store.read() as conn:
        found = queries.campaign_by_name(conn, "sweep")
    assert found
    return found


def put(store: Store, state: RunState) -> None:
    """The state of the run that has only begun."""
    with store.write() as conn:
        (run,) = (run for run in queries.runs(conn, campaign_of(store).id) if run.name == "begun")
        queries.update_run(conn, run.id, state=state)


class Steps:
    """What happens at each wait of a watch."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps, self.waits = list(steps), list[float]()

    def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._steps.pop(0)()


def followed(store: Store, steps: Steps) -> list[str]:
    """The state of the begun run at each writing."""
    seen = []

    def write(status: CampaignStatus) -> int:
        seen.append(str(status.runs[1].state))
        return len(seen)

    assert watch.write_until_settled(store, campaign_of(store), write, sleep=steps) == len(seen)
    return seen


def test_it_is_written_when_something_changed_until_all_are_settled(store: Store) -> None:
    steps = Steps(lambda: None, lambda: put(store, RunState.RUNNING), lambda: None, lambda: put(store, RunState.FAILED))
    assert followed(store, steps) == ["pending", "running", "failed"]
    assert steps.waits == [watch.REPORT_EVERY_S] * 4


def test_a_store_that_is_away_for_a_while_is_said_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> CampaignStatus:
        raise StoreUnreachable("no route to the store")

    steps = Steps(
        lambda: monkeypatch.setattr(watch, "read_status", fail),
        lambda: None,
        lambda: monkeypatch.setattr(watch, "read_status", read_status),
        lambda: put(store, RunState.COMPLETED),
    )
    assert followed(store, steps) == ["pending", "completed"]
    said = capsys.readouterr().err
    assert said.count("no route to the store") == 1
    assert "reading again" in said


def test_ctrl_c_leaves_the_last_page(store: Store, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "dscampaign.orchestrator.cli", "report", "--watch", "--output", "out"]
    url = f"sqlite:///{tmp_path}/campaign.db"
    log = tmp_path / "log"
    with log.open("w") as stream:
        process = subprocess.Popen([*words, "--store", url], cwd=tmp_path, stderr=stream, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: log.read_text().count("report.html · sweep") == 1, "the first page")
            before = (tmp_path / "out/report.html").stat().st_ino
            put(store, RunState.RUNNING)
            wait_until(lambda: log.read_text().count("1 running") == 1, "the second page")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == EXIT_INTERRUPTED
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
    page = tmp_path / "out/report.html"
    assert page.stat().st_ino != before  # another file was put in its place
    assert page.read_text().rstrip().endswith("</html>")
    assert not list(page.parent.rglob(".*"))
