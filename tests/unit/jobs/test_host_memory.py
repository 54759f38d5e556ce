"""Host memory of an attempt: that of its own processes, and of no others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dscampaign.jobs.agent import node_facts
from dscampaign.jobs.agent.node_facts import ProcessMemory, tree_bytes
from dscampaign.tests.support.waiting import HANGS_S

MB = 10**6

FORK = """
import os, sys
held = b"x" * int(sys.argv[1])
if os.fork() and os.fork():
    print("ready", flush=True)
sys.stdin.readline()
"""


def test_the_peak_is_kept_when_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, seen = iter([5, 9, None, 7]), threading.Event()

    def look(_root: int) -> int | None:
        size = next(sizes, 0)
        if size == 0:
            seen.set()
        return size

    monkeypatch.setattr(node_facts, "INTERVAL_S", 0.0)
    monkeypatch.setattr(node_facts, "tree_bytes", look)
    memory = ProcessMemory(1)
    memory.start()
    assert seen.wait(HANGS_S)
    assert memory.stop() == 9


def test_shared_pages_count_once() -> None:
    line = [sys.executable, "-c", FORK, str(200 * MB)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        parent.stdout.readline()
        held = tree_bytes(parent.pid)
        parent.communicate("\n" * 4)
    assert held is not None
    assert 200 * MB < held < 300 * MB


def test_without_its_maps_a_process_counts_by_what_it_does_not_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid, parent in ((7, 1), (8, 7), (9, 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 7 7\n")
        (tmp_path / str(pid) / "statm").write_text("1000 100 40 1 0 1 0\n")
    monkeypatch.setattr(node_facts, "PROC", tmp_path)
    assert tree_bytes(7) == 2 * 60 * os.sysconf("SC_PAGE_SIZE")
    assert tree_bytes(5) is None
