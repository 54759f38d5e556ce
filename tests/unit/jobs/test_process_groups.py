"""Processes that are ended as one group."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dscampaign.jobs.shared.process_groups import terminate_group
from dscampaign.tests.support.daemon import start_time
from dscampaign.tests.support.waiting import wait_until

GRACE_S = 20.0
RANK = """
import os, signal, sys, time
from pathlib import Path

def saves(*_):
    time.sleep(float(sys.argv[2]))
    Path(sys.argv[1], "saved").touch()
    sys.exit()

signal.signal(signal.SIGTERM, saves)
Path(sys.argv[1], "draft").write_text(str(os.getpid()))
Path(sys.argv[1], "draft").rename(Path(sys.argv[1], "rank"))
time.sleep(600)
"""


def started(folder: Path, saving_s: float) -> subprocess.Popen[bytes]:
    """A launcher that ends at the first signal, and a rank that takes so long to save something first."""
    line = [sys.executable, "-c", RANK, str(folder), str(saving_s)]
    launcher = [sys.executable, "-c", f"import subprocess; subprocess.run({line!r})"]
    leader = subprocess.Popen(launcher, start_new_session=True)
    wait_until((folder / "rank").exists, "the rank's start")
    return leader


def test_a_rank_may_save_something_after_its_launcher_has_ended(tmp_path: Path) -> None:
    terminate_group(started(tmp_path, 1.0), GRACE_S)
    assert (tmp_path / "saved").exists()


def test_a_rank_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    leader = started(tmp_path, 600.0)
    rank = int((tmp_path / "rank").read_text())
    terminate_group(leader, 0.5)
    wait_until(lambda: start_time(rank) is None, "the rank's end")
