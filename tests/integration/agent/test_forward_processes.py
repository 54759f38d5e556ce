"""The processes that forward metrics: what they cost an attempt that they fail, and how they end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.private_files import make_private
from dscampaign.jobs.agent import watch
from dscampaign.jobs.agent.evidence import RankEnd
from dscampaign.jobs.forward import processes
from dscampaign.jobs.forward.__main__ import NOT_RUN
from dscampaign.jobs.forward.processes import LIVE
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.tests.support import curves
from dscampaign.tests.support.attempt import Attempt, make_payload
from dscampaign.tests.support.waiting import HANGS_S, wait_until


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempt]:
    """An attempt whose metrics go to TensorBoard, by an agent that is quick and puts the signals back."""
    monkeypatch.setattr(watch, "POLL_S", 0.02)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    made = Attempt(tmp_path, make_payload(tmp_path, forward={"tensorboard": {}}))
    made.prepare()
    made.script("for step in (1, 2, 3): report(step)")
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)
    for process in made.processes:
        process.kill()
        process.communicate()


def said(paths: AttemptPaths) -> list[dict[str, Any]]:
    return [json.loads(line) for line in paths.forward_spool.read_text().splitlines()]


def curve(attempt: Attempt) -> list[int]:
    """Steps of the figure `x` that TensorBoard has."""
    return [step for step, _ in curves.tensorboard_curve(attempt.folder / "c" / "tensorboard" / "r", "x")]


def with_figure(attempt: Attempt) -> None:
    attempt.script("""
        if rank == 0:
            with open(os.environ["CAMPAIGN_METRICS_FILE"], "a") as spool:
                for step in (1, 2, 3):
                    spool.write(json.dumps({"step": step, "x": 0.5}) + "\\n")
    """)


def fake(attempt: Attempt, package: str, code: str) -> None:
    """Puts something else in a package's place, for the agent's children alone."""
    folder = attempt.folder / "fake"
    folder.mkdir()
    (folder / f"{package}.py").write_text(textwrap.dedent(code))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    attempt.change(env={"PYTHONPATH": path}, forward={"tensorboard": {}, package: {}})


def test_an_attempt_ends_with_all_its_lines_in_the_tool(attempt: Attempt) -> None:
    with_figure(attempt)
    assert attempt.run() == 0
    assert curve(attempt) == [1, 2, 3]
    assert [line["event"] for line in said(attempt.paths)] == ["opened"]


def test_a_tool_that_hangs_holds_nothing_up(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the training nor the other tool, and the attempt's end only for so long."""
    monkeypatch.setattr(processes, "FINISH_S", 0.1)
    hangs = attempt.folder / "hangs"
    fake(
        attempt,
        "wandb",
        f"""
        import os, pathlib, time
        pathlib.Path({str(hangs)!r}).write_text(str(os.getpid()))
        time.sleep(1000)
    """,
    )
    attempt.script(f"""
        from pathlib import Path
        if rank == 0:
            with open(os.environ["CAMPAIGN_METRICS_FILE"], "a") as spool:
                for step in (1, 2, 3):
                    spool.write(json.dumps({{"step": step, "x": 0.5}}) + "\\n")
            state = Path({str(attempt.run_paths.forward_state("hash", "tensorboard"))!r})
            while not (Path({str(hangs)!r}).exists() and state.exists() and '"x": 3' in state.read_text()):
                time.sleep(0.05)
    """)
    assert attempt.run() == 0
    assert attempt.outcome().last_step == 3
    assert curve(attempt) == [1, 2, 3]
    [unfinished] = [line for line in said(attempt.paths) if line["tool"] == "wandb"]
    assert unfinished["event"] == "unfinished"
    assert "did not take everything within 0.1 s" in unfinished["message"]
    assert watch.vanished(RankEnd(0, pid=int(hangs.read_text()), state="running"))


# -- one process, without an agent ------------------------------------------------------------------------------


@pytest.fixture
def alone(attempt: Attempt) -> Attempt:
    """What an agent leaves to the process."""
    attempt.paths.logs.mkdir()
    attempt.payload.write(attempt.paths.forward_payload)
    report(attempt, 1, 2)
    return attempt


def report(attempt: Attempt, *steps: int) -> None:
    with attempt.paths.metrics.open("a") as spool:
        spool.writelines(json.dumps({"step": step, "x": 0.5}) + "\n" for step in steps)


def start(attempt: Attempt, stdin: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dscampaign.jobs.forward", str(attempt.paths.dir), "tensorboard", *options]
    process = subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    attempt.processes.append(process)
    return process


def test_it_goes_on_through_slurms_signals_and_ends_with_its_agent(alone: Attempt) -> None:
    process = start(alone, subprocess.PIPE, LIVE)
    wait_until(alone.paths.forward_spool.exists, "the opening")
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        process.send_signal(number)
    report(alone, 3)
    assert process.stdin is not None
    process.stdin.close()  # as when the agent is killed
    process.stdin = None
    assert process.wait(HANGS_S) == 0
    assert curve(alone) == [1, 2, 3]


def test_an_attempt_waits_for_the_end_of_the_one_before(alone: Attempt) -> None:
    """What that one has passed on must be written down first."""
    state = alone.run_paths.forward_state("hash", "tensorboard")
    make_private(state.parent)
    with state.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        process = start(alone, subprocess.PIPE, LIVE)
        wait_until(lambda: _waits_for_a_lock(process.pid), "the wait")
        first_line = len(alone.paths.metrics.read_bytes().splitlines(keepends=True)[0])
        passed_on = {"key": "k", "run_id": "", "where": "", "offsets": {"1": first_line}, "marks": {}}
        write_atomically(state, json.dumps(passed_on))
    process.communicate(timeout=HANGS_S)
    assert curve(alone) == [2]


def _waits_for_a_lock(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_what_others_may_have_written_is_not_believed(alone: Attempt) -> None:
    alone.paths.forward_payload.chmod(0o666)
    process = start(alone, subprocess.DEVNULL)
    out, _ = process.communicate(timeout=HANGS_S)
    assert (process.returncode, "others can write to" in out) == (NOT_RUN, True)
    assert not (alone.folder / "c" / "tensorboard").exists()
