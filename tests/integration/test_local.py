"""Attempts as processes of this machine: found by what they are, not by who started them.

The process table is one for all, so every batch here has a token that nobody else uses.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dscampaign.files.atomic_files import read_json
from dscampaign.jobs.shared.job_array import write_payloads
from dscampaign.jobs.shared.layout import AttemptPaths, payloads_file
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors.base import JobArray, SubmissionUnclear
from dscampaign.orchestrator.executors.local import AGENT, LocalExecutor
from dscampaign.tests.support.attempt import make_payload
from dscampaign.tests.support.waiting import HANGS_S, wait_until


class Place:
    """An executor, and batches of agents that wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor = LocalExecutor(folder / "batches")
        self.token = uuid.uuid4().hex[:12]
        python = folder / "python"
        python.write_text("#!/bin/sh\nexec sleep 100\n")
        python.chmod(0o755)

    def batch(self, size: int = 1, **resources: Any) -> JobArray:
        token = self.token
        folder = self.folder / "batches" / token
        folder.mkdir(parents=True)
        python = str(self.folder / "python")
        payloads = [make_payload(self.folder / str(index), python=python, token=token) for index in range(size)]
        for payload in payloads:
            Path(payload.attempt_dir).mkdir(parents=True)
        write_payloads(payloads_file(folder), payloads)
        return JobArray(token, folder, size, resources)

    def states(self, size: int = 1, executor: LocalExecutor | None = None) -> list[str]:
        found = (executor or self.executor).list_jobs({self.token: range(size)}, 0.0)
        return [found.jobs[self.token, index].state for index in range(size)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    jobs = made.executor.list_jobs({made.token: range(4)}, 0.0).jobs.values()
    made.executor.cancel([view.job_id for view in jobs if view.state == "RUNNING"])
    for child in made.executor._children:
        child.wait(HANGS_S)


def test_attempts_run_on_whoever_asks(place: Place) -> None:
    ids = place.executor.submit(place.batch(2))
    other = LocalExecutor(place.folder / "batches")
    found = other.list_jobs({place.token: [0, 1]}, 0.0)
    assert found.complete
    assert [found.jobs[place.token, index].job_id for index in (0, 1)] == ids
    assert place.states(2, other) == ["RUNNING", "RUNNING"]


def test_inside_a_job_of_slurm_s_an_attempt_is_still_this_machine_s(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits in a shell of `salloc` or `srun --pty` would see it claimed by the job of that shell, and so lost."""
    for name, value in {"SLURM_JOB_ID": "4711", "SLURM_NODEID": "1", "SLURMD_NODENAME": "elsewhere"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_TMPDIR", "/scratch/4711")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    [job_id] = place.executor.submit(place.batch())
    claim = AttemptPaths(Path(make_payload(place.folder / "0").attempt_dir)).claim
    wait_until(claim.exists, "the claim")
    claimed = read_json(claim)
    assert claimed
    assert (claimed["job_id"], claimed["host"]) == (job_id, socket.gethostname().partition(".")[0])
    environment = Path("/proc", job_id.rpartition("-")[2], "environ").read_bytes().split(b"\0")
    assert [entry for entry in environment if entry.startswith(b"SLURM")] == [b"SLURM_TMPDIR=/scratch/4711"]


def test_a_cancelled_attempt_ends_with_all_its_processes(place: Place) -> None:
    [job_id] = place.executor.submit(place.batch())
    claim = place.folder / "0" / "c" / "runs" / "r" / "g0001"
    wait_until((claim / "logs" / "launcher-0.log").exists, "the start of the launcher")
    LocalExecutor(place.folder / "batches").cancel([job_id])
    wait_until(lambda: place.states() == ["GONE"], "the end of the agent")
    assert (claim / "outcome-0.json").exists()
    place.executor.cancel([job_id])  # again does no harm


@pytest.mark.skipif(os.geteuid() != 0, reason="LEFT OUT: only root can start a process of another user's")
def test_a_process_of_another_user_is_none_of_ours_whatever_it_calls_itself(place: Place) -> None:
    batch = place.batch()
    like_an_agent = ["sh", "-c", "sleep 60; :", AGENT, str(batch.folder), "0"]
    stranger = subprocess.Popen(like_an_agent, user=65534, cwd="/", start_new_session=True)
    try:
        assert place.states() == ["GONE"]
        [job_id] = place.executor.submit(batch)
        wait_until(lambda: place.states() == ["RUNNING"], "the agent")
        assert place.executor.list_jobs({place.token: [0]}, 0.0).jobs[place.token, 0].job_id == job_id
        place.executor.cancel([f"local-{socket.gethostname()}-{stranger.pid}"])
        assert stranger.poll() is None
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait(HANGS_S)


def test_of_two_agents_both_are_shown(place: Place) -> None:
    """The claim says which of them runs the attempt."""
    batch = place.batch()
    like_an_agent = ["sh", "-c", "sleep 60; :", AGENT, str(batch.folder), "0"]
    twins = [subprocess.Popen(like_an_agent, start_new_session=True) for _ in range(2)]
    try:
        found = place.executor.list_jobs({place.token: [0]}, 0.0)
        assert (found.jobs, found.complete) == ({}, True)
        shown = {job.job_id for job in found.rivals[place.token, 0]}
        assert shown == {f"local-{socket.gethostname()}-{twin.pid}" for twin in twins}
    finally:
        for twin in twins:
            os.killpg(twin.pid, signal.SIGKILL)
            twin.wait(HANGS_S)


def test_a_killed_agent_is_gone_though_nobody_collected_it(place: Place) -> None:
    [job_id] = place.executor.submit(place.batch())
    os.kill(int(job_id.rsplit("-", 1)[1]), signal.SIGKILL)
    other = LocalExecutor(place.folder / "batches")  # not its parent
    wait_until(lambda: place.states(1, other) == ["GONE"], "the end of the agent")


def test_the_spec_s_setup_comes_first_and_its_failure_is_in_the_log(place: Place) -> None:
    batch = place.batch(setup=["echo hello", "exit 3"])
    place.executor.submit(batch)
    wait_until(lambda: place.states() == ["GONE"], "the end of the shell")
    assert (batch.folder / "0.log").read_text() == "hello\n"


def test_agents_go_on_when_the_terminal_is_interrupted(place: Place) -> None:
    place.executor.submit(place.batch())
    [child] = place.executor._children
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


@pytest.mark.parametrize(("fails_at", "kind"), [(0, Unreachable), (1, SubmissionUnclear)])
def test_a_machine_without_room_for_processes(
    place: Place, monkeypatch: pytest.MonkeyPatch, fails_at: int, kind: type[Exception]
) -> None:
    real, count = subprocess.Popen, 0

    def popen(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count > fails_at:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(kind, match="temporarily unavailable"):
        place.executor.submit(place.batch(2))
    monkeypatch.undo()
    assert place.states(2) == ["RUNNING"] * fails_at + ["GONE"] * (2 - fails_at)
