"""A rank ends when nobody may need it any more: its agent is dead, stopped or hangs, or the run has a newer attempt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dscampaign.jobs import guard, rank
from dscampaign.jobs.agent.progress import RankWatch
from dscampaign.tests.support.waiting import wait_until

SCRIPT = Path(guard.__file__)
LOOKS = 10
"""So often in vain, and an agent is taken for stopped."""

FOREVER = "import time\nwhile True: time.sleep(1)\n"
HOLDS_THE_LOCK = "import ctypes\nctypes.PyDLL(None).sleep(100000)\n"
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{FOREVER}"
AGENT = """\
import sys, time
from dscampaign.jobs.agent import progress
progress.PULSE_S = 0.05
watch = progress.RankWatch([0])
print(watch.open()[progress.DIR_VARIABLE], flush=True)
while True:
    time.sleep(0.05)
    watch.look()
"""


@dataclass
class Node:
    """An agent, and a rank with its guard, which waits less long than in earnest."""

    folder: Path
    agent: subprocess.Popen[str] = field(init=False)
    rank: subprocess.Popen[bytes] = field(init=False)
    progress: Path = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "ranks").mkdir()
        self.agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True)
        assert self.agent.stdout is not None
        self.progress = Path(self.agent.stdout.readline().strip())
        self.say_current(1)

    def train(self, text: str = FOREVER) -> None:
        """Starts the rank, as its launcher does."""
        script, started = self.folder / "train.py", self.folder / "started"
        script.write_text(f"open({str(started)!r}, 'w').close()\n{text}")
        quick = (
            SCRIPT.read_text().replace("POLL_S = 2.0", "POLL_S = 0.1").replace("SILENCE_S = 60.0", "SILENCE_S = 1.0")
        )
        (self.folder / "guard.py").write_text(quick.replace("CURRENT_POLL_S = 10.0", "CURRENT_POLL_S = 0.1"))
        (self.folder / "rank.py").write_text(Path(rank.__file__).read_text())
        env = {
            "RANK": "0",
            "CAMPAIGN_ATTEMPT_DIR": str(self.folder),
            "CAMPAIGN_RUN_DIR": str(self.folder),
            "CAMPAIGN_GENERATION": "1",
            "CAMPAIGN_AGENT_PID": str(self.agent.pid),
            "CAMPAIGN_PROGRESS_DIR": str(self.progress),
        }
        with self.log.open("wb") as log:
            command = [sys.executable, str(self.folder / "rank.py"), str(script)]
            self.rank = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)
        wait_until(started.exists, "the script")

    def say_current(self, generation: int) -> None:
        (self.folder / "current").write_text(json.dumps({"generation": generation}))

    @property
    def log(self) -> Path:
        return self.folder / "rank.log"

    def ended(self) -> str:
        """Waits until the rank was killed; returns what its log says."""
        wait_until(lambda: self.rank.poll() is not None, "the end of the rank")
        assert self.rank.returncode == -signal.SIGKILL
        wait_until(lambda: "was ended" in self.log.read_text(), "the reason")
        return self.log.read_text()

    def wait_for_looks(self) -> None:
        """Waits until the guard has looked more often than an agent may be silent: each time it sleeps once."""
        wait_until(lambda: len(self.guards()) == 1, "the guard")
        [status] = (Path(f"/proc/{pid}/status") for pid in self.guards())

        def sleeps() -> int:
            return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.MULTILINE)[0])

        first = sleeps()
        wait_until(lambda: sleeps() - first > 3 * LOOKS, "looks of the guard")

    def guards(self) -> list[int]:
        """The processes that watch over the rank."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if str(self.folder / "guard.py") in words:
                found.append(int(process.name))
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for process in (made.agent, made.rank):
        process.kill()
        process.wait()
    wait_until(lambda: made.guards() == [], "the end of the guard")


@pytest.mark.parametrize(
    ("what", "script", "reason"),
    [
        ("stopped", FOREVER, "gave no sign of life for 1 s"),
        ("stopped", HOLDS_THE_LOCK, "gave no sign of life for 1 s"),
        ("killed", DEAF, "its agent is gone"),
        ("superseded", HOLDS_THE_LOCK, "attempt 2 has begun"),
        ("superseded", DEAF, "attempt 2 has begun"),
        ("stopped and superseded", FOREVER, "was ended"),
    ],
    ids=["stopped", "stopped-with-the-lock", "killed-deaf", "superseded-with-the-lock", "superseded-deaf", "both"],
)
def test_a_rank_that_nobody_may_need_is_ended(node: Node, what: str, script: str, reason: str) -> None:
    node.train(script)
    if "stopped" in what:
        node.agent.send_signal(signal.SIGSTOP)
    if "killed" in what:
        node.agent.kill()
    if "superseded" in what:
        node.say_current(2)
    assert reason in node.ended()


def test_a_rank_that_is_suspended_with_its_agent_is_not_ended(node: Node) -> None:
    node.train()
    for process in (node.rank, node.agent):
        process.send_signal(signal.SIGSTOP)
    node.wait_for_looks()
    assert node.rank.poll() is None


@pytest.mark.parametrize("trouble", ["progress folder gone", "current gone", "current torn", "signals"])
def test_a_rank_that_is_needed_lives(node: Node, trouble: str) -> None:
    node.train()
    if trouble == "progress folder gone":
        for file in node.progress.iterdir():
            file.unlink()
        node.progress.rmdir()
    elif trouble == "current gone":
        (node.folder / "current").unlink()
    elif trouble == "current torn":
        (node.folder / "current").write_text('{"gen')
    else:
        wait_until(lambda: len(node.guards()) == 1 and _ignores(node.guards()[0], signal.SIGTERM), "the guard")
        for number in (signal.SIGTERM, signal.SIGUSR2):
            os.kill(node.guards()[0], number)
    node.wait_for_looks()
    assert node.rank.poll() is None
    assert len(node.guards()) == 1
    node.say_current(2)
    assert "attempt 2 has begun" in node.ended()


def test_a_job_that_was_suspended_as_a_whole_goes_on(node: Node) -> None:
    node.train()
    wait_until(lambda: len(node.guards()) == 1, "the guard")
    job = [node.agent.pid, node.rank.pid, *node.guards()]
    for pid in job:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)  # twice as long as an agent may be silent: time itself is what this is about
    for pid in job:
        os.kill(pid, signal.SIGCONT)
    node.wait_for_looks()
    assert node.rank.poll() is None


def test_an_agent_that_hangs_stops_saying_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dscampaign.jobs.agent.progress.PULSE_S", 0.01)
    watch = RankWatch([0])
    alive = Path(watch.open()["CAMPAIGN_PROGRESS_DIR"]) / guard.ALIVE

    def beats() -> bool:
        before = alive.stat().st_mtime_ns
        time.sleep(0.3)
        return alive.stat().st_mtime_ns != before

    wait_until(beats, "a sign of life")
    monkeypatch.setattr("dscampaign.jobs.agent.progress.HUNG_S", 0.0)
    wait_until(lambda: not beats(), "silence")
    watch.close()
    assert not alive.exists()


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    return bool(mask >> (number - 1) & 1)
