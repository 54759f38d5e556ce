"""A node looks at itself: whatever fails or hangs is told, and hides nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscampaign.jobs.probe import examine
from dscampaign.jobs.probe.examine import ChildFailed
from dscampaign.jobs.probe.node_report import QUESTION, REPORT, Host, NodeReport, Question, Software
from dscampaign.tests.support.waiting import HANGS_S, wait_until

PYTHON = """\
#!{python}
import json, pathlib, sys
what, output = [sys.argv[i + 1 : i + 3] for i, word in enumerate(sys.argv) if word.endswith("training_python.py")][0]
if what == "software":
    facts = {{"python": "3.12", "torch": "2.8", "ops": {{"async_io": False}}}}
    pathlib.Path(output).write_text(json.dumps(facts))
else:
    print("[rank1]: RuntimeError: NCCL error: unhandled system error")
    sys.exit(1)
"""
"""Stands in for the training's Python: its software is known, its launcher fails."""


@pytest.fixture
def question(tmp_path: Path) -> Question:
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable))
    python.chmod(0o700)
    files = (str(tmp_path), str(tmp_path / "absent"))
    return Question(str(python), {}, 2, gpus=0, on_gpus=False, files=files)


def examined(question: Question, folder: Path) -> NodeReport:
    folder.mkdir(mode=0o700)
    question.write(folder / QUESTION)
    command = [sys.executable, "-m", "dscampaign.jobs.probe.examine", str(folder)]
    env = {k: v for k, v in os.environ.items() if k not in ("SLURM_JOB_ID", "SLURMD_NODENAME")}
    subprocess.run(command, check=True, timeout=HANGS_S, env=env)
    report = NodeReport.read(folder / REPORT)
    assert report is not None
    return report


def test_each_look_tells_what_it_saw_or_why_not(question: Question, tmp_path: Path) -> None:
    report = examined(replace(question, nvme_path=str(tmp_path / "no-disk")), tmp_path / "talk")
    assert report.running == ""
    assert report.missing_files == (str(tmp_path / "absent"),)
    assert isinstance(report.host, Host)
    assert report.host.cpus == len(os.sched_getaffinity(0))
    assert report.nvme is None
    assert "no-disk" in report.troubles["nvme"]
    assert isinstance(report.software, Software)
    assert report.software.ops == {"async_io": False}
    assert report.troubles["collective"] == "ended with code 1: RuntimeError: NCCL error: unhandled system error"
    assert report.gpus is None


def test_a_question_that_others_could_have_written_is_not_answered(question: Question, tmp_path: Path) -> None:
    asked = tmp_path / QUESTION
    question.write(asked)
    asked.chmod(0o666)
    assert examine.main([str(tmp_path)]) == examine.EXIT_REFUSED
    asked.chmod(0o600)
    for mode in (0o777, 0o1777):  # of its folder: what the looks leave there is read by name
        tmp_path.chmod(mode)
        assert examine.main([str(tmp_path)]) == examine.EXIT_REFUSED
    assert not (tmp_path / REPORT).exists()


def test_a_look_that_fails_is_told_with_its_kind() -> None:
    def broken() -> Any:
        raise KeyError("x")

    assert examine._within(5, broken) == (None, "KeyError: 'x'")
    assert examine._within(5, lambda: ()) == ((), "")


def test_a_disk_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    found = examine._disk(tmp_path)
    assert (found.path, found.free_gb > 0, bool(found.file_system)) == (str(tmp_path), True, True)
    assert list(tmp_path.iterdir()) == []


# -- programs --------------------------------------------------------------------------------------------------------


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {pid}; echo begun; wait"
    with pytest.raises(ChildFailed, match="did not end within 1 s: begun"):
        examine.run_program(["sh", "-c", script], os.environ, 1.0, tmp_path / "log")
    wait_until(lambda: not _runs(pid.read_text().strip()), "the end of what it started")


def _runs(pid: str) -> bool:
    """Whether a process is there, and more than a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# -- what runs in the training's Python --------------------------------------------------------------------------------


@pytest.mark.training
def test_the_training_s_python_tells_what_it_has(tmp_path: Path) -> None:
    output = tmp_path / "software.json"
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, examine._PROGRAM, "software", str(output), "cpu_adam", "no_such_operator"]
    subprocess.run(command, check=True, env=env, capture_output=True)
    found = Software(**json.loads(output.read_text()))
    assert (found.accelerator, found.deepspeed_trouble, found.device_trouble) == ("cpu", "", "")
    assert (bool(found.torch), bool(found.deepspeed), list(found.missing)) == (True, True, [])
    assert set(found.ops) == {"cpu_adam", "no_such_operator"}
    assert not found.ops["no_such_operator"]
