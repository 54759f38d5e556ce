"""The command itself, while the folder that holds store and campaign is away."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.states import RunState
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.selection import find
from dscampaign.orchestrator.errors import EXIT_UNREACHABLE
from dscampaign.tests.faults.trial import stand_in
from dscampaign.tests.support.campaigns import observe
from dscampaign.tests.support.waiting import HANGS_S, wait_until

SCRIPT = """\
import os, sys, time
from dscampaign.jobs.report import report
report(1, loss=1.0)
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
"""


class Campaign:
    """One run of a script that ends when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.aside, self._over, self._said = (
            folder / "dir",
            folder / "aside",
            folder / "over",
            folder / "said",
        )
        (folder / "train.py").write_text(SCRIPT)
        spec = folder / "spec.yaml"
        spec.write_text(f"""\
name: away
executor: local
python: {stand_in(folder)}
command: [{folder}/train.py, {self._over}]
train: {{steps: 1}}
ranks_per_node: 1
telemetry_s: 0
""")
        assert self.start("submit", str(spec), "--yes").wait(HANGS_S) == 0

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dscampaign.orchestrator.cli", *words, "--dir", str(self.dir)]
        with self._said.open("ab") as said:
            return subprocess.Popen(command, stdout=said, stderr=said)

    def said(self) -> str:
        return self._said.read_text()

    def end_training(self) -> None:
        self._over.touch()


@pytest.fixture
def campaign(tmp_path: Path) -> Iterator[Campaign]:
    made = Campaign(tmp_path)
    yield made
    made.end_training()


@pytest.mark.parametrize("mount_point", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_watch_waits_for_the_folder_and_repeats_nothing(campaign: Campaign, mount_point: bool) -> None:
    watch = campaign.start("reconcile", "--watch")
    wait_until(lambda: "running" in campaign.said(), "the attempt")
    wait_until(lambda: any(campaign.dir.glob("away/runs/*/g0001/metrics.jsonl")), "its first step")
    campaign.dir.rename(campaign.aside)
    if mount_point:
        campaign.dir.mkdir()
    wait_until(lambda: "was deleted or replaced" in campaign.said(), "the watch to notice")
    campaign.end_training()
    [log] = campaign.aside.glob("away/batches/*/0.log")
    wait_until(lambda: "waiting for the shared folder" in log.read_text(), "the agent to notice")
    if mount_point:
        assert not any(campaign.dir.iterdir())
        campaign.dir.rmdir()
    campaign.aside.rename(campaign.dir)
    assert watch.wait(HANGS_S) == 0, campaign.said()
    assert campaign.said().count("was deleted or replaced") == campaign.said().count("recovered after") == 1
    store = Store.open(f"sqlite:///{campaign.dir}/campaign.db")
    seen = observe(store, find(store, "away"))
    [(name, attempts)] = seen.attempts.items()
    assert seen.states() == {name: RunState.COMPLETED}
    assert len(attempts) == 1, [dict(attempt.evidence) for attempt in attempts]
    store.close()


def test_a_watch_that_never_saw_the_folder_ends_at_once(campaign: Campaign) -> None:
    (campaign.dir / "away").rename(campaign.aside)
    for words in (["reconcile"], ["reconcile", "--watch"]):
        assert campaign.start(*words).wait(HANGS_S) == EXIT_UNREACHABLE
    assert "is missing or empty" in campaign.said()
    assert not (campaign.dir / "away").exists()
    campaign.aside.rename(campaign.dir / "away")
