"""What a node is, and how busy it was."""

from pathlib import Path

import pytest

from dscampaign.jobs.agent import machine
from dscampaign.jobs.agent.machine import Machine, MachineWatch


def proc(folder: Path, stat: str, cpuinfo: str = "") -> None:
    (folder / "stat").write_text(stat)
    (folder / "cpuinfo").write_text(cpuinfo)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /proc."""
    monkeypatch.setattr(machine, "PROC", tmp_path)
    monkeypatch.setattr(machine, "OS_RELEASE", tmp_path / "os-release")
    return tmp_path


def test_a_node_says_what_it_is_and_how_busy_it_was(node: Path) -> None:
    proc(node, "cpu  100 10 50 800 40 0 0 0 7 0\ncpu0 1 1 1 1\n")
    watch = MachineWatch()
    # 300 of 400 ticks more: waiting for a disk is idle, time of guests is part of user time
    proc(node, "cpu  300 20 130 890 50 5 5 0 90 0\n", "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) 8480+\n" * 2)
    (node / "os-release").write_text('NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    found = watch.end()
    assert (found.cpu, found.system, found.busy_pct) == ("Intel(R) Xeon(R) 8480+", "Debian GNU/Linux 12 (bookworm)", 75)
    assert min(found.cores or 0, found.usable or 0) > 0
    assert found.kernel


@pytest.mark.parametrize("stat", ["", "cpu\n", "intr 1 2 3 4 5 6\n", "cpu 1 2 3\n"])
def test_a_node_that_says_nothing_is_no_trouble(node: Path, stat: str) -> None:
    proc(node, stat)
    found = MachineWatch().end()
    assert isinstance(found, Machine)
    assert (found.system, found.busy_pct) == ("", None)
