"""How far the ranks of a node are, from their records to the heartbeat."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dscampaign.jobs.agent.progress import Heartbeat, RankProgress, RankWatch
from dscampaign.tests.unit.jobs.test_report import PREAMBLE


class Clock:
    """Monotonic time by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)


def rank(folder: str, number: int, script: str) -> None:
    """Runs what one rank says of itself."""
    env = {**os.environ, "CAMPAIGN_PROGRESS_DIR": folder, "RANK": str(number), "CAMPAIGN_METRICS_FILE": ""}
    subprocess.run([sys.executable, "-S", "-c", PREAMBLE + script], env=env, check=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_every_rank_says_how_far_it_is(clock: Clock) -> None:
    watch = RankWatch(range(4, 6))
    folder = watch.open()["CAMPAIGN_PROGRESS_DIR"]
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700
    assert (watch.heartbeat("n1").idle_s, watch.heartbeat("n1").phase) == (None, "start")
    rank(folder, 4, "r.report(7, loss=1.0); r.progress(8)")
    rank(folder, 5, "r.report(7)\nwith r.phase('eval'): r.report(7, eval_loss=2)\nr.phase('save it!')")
    watch.look()
    clock.now_s += 12.0
    found = watch.heartbeat("n1")
    assert (found.host, found.idle_s, found.phase, found.phase_s) == ("n1", 12.0, "save_it_", 12.0)
    rank(folder, 5, "r.progress(9); r.phase('train')")
    watch.look()
    clock.now_s += 2.0
    assert (watch.heartbeat("n1").phase, watch.heartbeat("n1").phase_s) == ("steps", 14.0)  # now rank 4 is slowest
    assert found.ranks == {4: RankProgress(8, "steps"), 5: RankProgress(7, "save_it_")}
    watch.close()
    assert not Path(folder).exists()


def test_time_without_a_change_counts_from_the_last_rank_that_moved(clock: Clock) -> None:
    watch = RankWatch(range(2))
    folder = Path(watch.open()["CAMPAIGN_PROGRESS_DIR"])
    for number, at_s in ((0, 1010.0), (1, 1015.0)):
        clock.now_s = at_s
        (folder / f"rank-{number}").write_text('{"step": 3, "phase": "train"}')
        watch.look()
    for at_s in range(1020, 1041, 5):
        clock.now_s = float(at_s)
        watch.look()
    assert watch.heartbeat("n").idle_s == 25.0
    watch.close()


def test_time_in_which_the_whole_job_was_stopped_does_not_count(clock: Clock) -> None:
    watch = RankWatch(range(1))
    folder = Path(watch.open()["CAMPAIGN_PROGRESS_DIR"])
    (folder / "rank-0").write_text('{"step": 3, "phase": "train"}')
    watch.look()
    for wait_s in (5.0, 3600.0, 5.0):
        clock.now_s += wait_s
        watch.look()
    assert watch.heartbeat("n").idle_s == 10.0
    watch.close()


def test_without_a_place_for_records_nobody_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_room(**_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", no_room)
    watch = RankWatch(range(1))
    assert watch.open() == {"CAMPAIGN_PROGRESS_DIR": ""}
    watch.look()
    assert watch.heartbeat("n").idle_s is None
    watch.close()
    rank(str(tmp_path / "not seen in this container"), 0, "r.report(1); r.progress(2)\nwith r.phase('eval'): pass")


def test_fields_of_another_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "beat").write_text('{"ts": 5.0, "mood": 1}')
    assert Heartbeat.read(tmp_path / "beat") == Heartbeat(5.0)


@pytest.mark.parametrize("step", ["Infinity", "1e400", "[]", "true", '"1"', "1" * 5000, "[" * 900 + "]" * 900])
def test_whatever_a_rank_says_its_agent_goes_on(tmp_path: Path, step: str) -> None:
    watch = RankWatch([0, 1])
    folder = Path(watch.open()["CAMPAIGN_PROGRESS_DIR"])
    try:
        (folder / "rank-0").write_text(f'{{"step": {step}, "phase": "train"}}')
        os.mkfifo(folder / "rank-1")
        watch.look()
        assert watch.heartbeat("n").ranks == {}
    finally:
        watch.close()
