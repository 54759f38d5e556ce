"""A campaign run to its end under the reconciler's watch, on a simulated cluster and in time that nobody waits for.

The watch is a process of its own, so that its CPU time and its memory are its alone. Each time that it would sleep, the
cluster makes its next move: what ran has ended, and what waited longest begins. Files and queue are as agents and Slurm
would leave them; the database's clock moves on by the length of a job.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import event

from dscampaign.db import queries
from dscampaign.db.store import Store
from dscampaign.files.private_files import make_below
from dscampaign.jobs.agent.evidence import NodeOutcome, RankEnd
from dscampaign.jobs.agent.node import Start
from dscampaign.jobs.shared.layout import AttemptPaths, CampaignPaths, payloads_file
from dscampaign.orchestrator.campaign.desired import record
from dscampaign.orchestrator.campaign.submission import Submission
from dscampaign.orchestrator.cli.watch import watch_passes
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.tests.support.spec_files import load_spec

JOB_S = 720.0
"""How long each job runs, and how far apart two passes are: longer than squeue shows what has ended."""

AT_ONCE = 10
"""The cluster runs one in so many of the runs at a time."""

FIRST, LAST = 91, 100
"""The steps that each job reports."""

UNIX_EPOCH_DAYS = 2440587.5
"""1970-01-01 as SQLite counts days."""


@dataclass
class _Task:
    """One element of a job array: its id, the name of its job, and the folder of its attempt."""

    job_id: str
    name: str
    files: AttemptPaths
    began_s: float = 0.0


class SimulatedCluster:
    """What the stub's queue holds; makes the files that agents would leave.

    Args:
        folder: with the stub's folder `slurm` and the campaign's.
        name: of the campaign.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._queue = folder / "slurm" / "queue"
        self._paths = CampaignPaths(folder / "campaign", name)
        self._waiting: deque[_Task] = deque()
        self._running: list[_Task] = []
        self._arrays: set[str] = set()
        self._tasks = 0

    def move(self, now_s: float) -> None:
        """What runs ends, and the first of what waits begins; `now_s`: when, in epoch seconds."""
        lines = []
        for task in self._running:
            leave_end(task.files, task.job_id, task.began_s, now_s)
            times = f"{task.began_s:.0f}|{task.began_s:.0f}|{now_s:.0f}"
            lines.append(f"{task.job_id}|COMPLETED|None|{times}|node1|{os.getuid()}|{task.name}")
        self._take()
        room = max(1, self._tasks // AT_ONCE)
        self._running = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        for task in self._running:
            self._begins(task, now_s)
            lines.append(f"{task.job_id}|RUNNING|None|{now_s:.0f}|{now_s:.0f}|N/A|node1|{os.getuid()}|{task.name}")
        waits = "|PENDING|Priority|2026-01-31T12:00:00|N/A|N/A||"
        lines += [f"{task.job_id}{waits}{os.getuid()}|{task.name}" for task in self._waiting]
        self._queue.write_text("".join(f"{line}\n" for line in lines))

    def _take(self) -> None:
        """Takes in what was submitted since the last move."""
        for line in self._queue.read_text().splitlines():
            job_id, state, *_, name = line.split("|")
            array, _, index = job_id.partition("_")
            if state == "PENDING" and array not in self._arrays and index == "0":
                self._arrays.add(array)
                for place, attempt in enumerate(self._attempts(name)):
                    self._waiting.append(_Task(f"{array}_{place}", name, AttemptPaths(attempt)))
                    self._tasks += 1

    def _attempts(self, token: str) -> Iterator[Path]:
        """The folders of an array's attempts, task by task."""
        _, common, *lines = payloads_file(self._paths.batch(token)).read_text().splitlines()
        shared = json.loads(common)
        return (Path({**shared, **json.loads(line)}["attempt_dir"]) for line in lines)

    def _begins(self, task: _Task, now_s: float) -> None:
        make_below(self._paths.runs, task.files.dir)
        task.began_s = now_s
        task.files.claim.write_text(json.dumps({"job_id": task.job_id, "host": "node1", "ts": now_s}))
        Start(task.job_id, "node1", "node1", 29500, "", 0, now_s).write(task.files.started)
        beat = {"ts": now_s, "host": "node1", "idle_s": 1.0, "phase": "train", "ranks": {}, "phase_s": 60.0}
        task.files.heartbeat(0).write_text(json.dumps(beat))


def leave_end(files: AttemptPaths, job_id: str, began_s: float, now_s: float) -> None:
    """Writes what the agent of an attempt leaves that completed: its last steps, and how it ended."""
    steps = ({"step": step, "ts": now_s, "loss": 1.0, "step_time_s": 0.1} for step in range(FIRST, LAST + 1))
    files.metrics.write_text("".join(json.dumps(step) + "\n" for step in steps))
    outcome = NodeOutcome(
        generation=1,
        job_id=job_id,
        node_rank=0,
        host="node1",
        launcher_exit=0,
        ended_by="",
        started_s=began_s,
        ended_s=now_s,
        start_step=0,
        last_step=LAST,
        ranks=tuple(RankEnd(rank, 0, None) for rank in range(8)),
    )
    outcome.write(files.outcome(0))


class Watched(NamedTuple):
    """What the watch took until nothing was left to do, in how many passes, and the lines that it wrote."""

    seconds: float
    cpu_s: float
    memory_mb: float
    passes: int
    lines: int


def record_campaign(folder: Path) -> str:
    """Records the campaign of a folder's spec, submits nothing, and returns its name."""
    path, root = folder / "spec.yaml", folder / "campaign"
    root.mkdir()
    spec = load_spec(path)
    store = Store.open(f"sqlite:///{root}/campaign.db", create=True)
    record(store, Submission(spec, path.read_text(), expand(spec), root, path))
    store.close()
    return spec.name


def watch(folder: Path, name: str, env: Mapping[str, str]) -> Watched:
    """Watches a recorded campaign, of which nothing was submitted, to its end. Raises RuntimeError if that fails."""
    cluster, now_s, passes, took = SimulatedCluster(folder, name), time.time(), 1, 0.0
    words = [sys.executable, "-m", "dscampaign.benchmarks.shared.simulated_watch", str(folder), name]
    ours, theirs = socket.socketpair()
    with (folder / "log").open("w+b") as log, ours:
        began = time.perf_counter()
        number = theirs.fileno()
        process = subprocess.Popen([*words, str(number)], env=env, cwd=folder, stderr=log, pass_fds=[number])
        theirs.close()
        while ours.recv(1):
            took += time.perf_counter() - began
            passes, now_s = passes + 1, now_s + JOB_S
            cluster.move(now_s)
            began = time.perf_counter()
            ours.sendall(f"{now_s:.3f}\n".encode())
        _, status, usage = os.wait4(process.pid, 0)
        took += time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read().decode()
    if process.returncode:
        raise RuntimeError(f"the watch ended with {process.returncode}: {text[-2000:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Watched(took, cpu_s, usage.ru_maxrss / 1e3, passes, text.count("\n"))


def _main(folder: str, name: str, number: str) -> int:
    """The watch itself: asks on the socket of that number for the next moment of time."""
    now_s = time.time()

    def connected(connection: sqlite3.Connection, _record: object) -> None:
        # a function of one's own comes before SQLite's of that name
        connection.create_function("julianday", 1, lambda _: now_s / 86_400 + UNIX_EPOCH_DAYS)

    def turn(_seconds: float) -> None:
        nonlocal now_s
        cluster.sendall(b".")
        now_s = float(answers.readline())

    store = Store.open(f"sqlite:///{folder}/campaign/campaign.db")
    event.listen(store._engine, "connect", connected)  # noqa: SLF001 - nothing else gives it another clock
    store.close()  # connections that were opened before know another time
    with socket.socket(fileno=int(number)) as cluster, cluster.makefile() as answers:
        with store.read() as conn:
            campaign = queries.campaign_by_name(conn, name)
        assert campaign is not None
        watch_passes(store, campaign, sleep=turn)
        with store.read() as conn:
            unsettled = queries.unsettled_campaigns(conn)
    store.close()
    return 1 if unsettled else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
