"""Runs the attempts of a job, each as a step of its own, in turn or in several lanes of the job's node.

Started in the batch script:  python -m dscampaign.jobs.agent.shared_job BATCH_DIR SIGNAL_DELAY_S LANES It decides
nothing about an attempt: the agents' claims do. If it dies, so does the job.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dscampaign.files.atomic_files import read_json
from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.job_array import (
    EARLY_S,
    JobRecord,
    StepEnd,
    is_closed,
    job_record,
    joining_prefix,
    read_array,
    run_log,
)
from dscampaign.jobs.shared.layout import AttemptPaths, payloads_file

from .agent import EXIT_FAILED
from .evidence import EXIT_NOT_MINE, REFUSED
from .node import Node

POLL_S = 0.2
CLOSED_POLL_S = 1.0
CLOSED_S = 120.0  # how long the agents of a closed attempt may take to end it; after that its step is killed
SIGNAL_S = 3.0  # how long after the end of a step without an outcome a signal to the job that ended it may come

_OUT_OF_MEMORY = re.compile(
    rb"^(?:slurmstepd\S*|srun): error: .*(?:oom[-_ ]kill|Out Of Memory|exceeded memory limit)", re.MULTILINE
)
_STOPPED: Final = ("signal", "stop")  # ends by a signal, which Slurm sends to all of a job


class AttemptQueue:
    """Chooses the attempts of a job to run, by their places and the time left, and keeps the job's record."""

    def __init__(
        self, batch: Path, job_id: str, attempts: Mapping[int, Mapping[str, Any]], left_s: Callable[[], float]
    ) -> None:
        self.batch, self.job_id, self._attempts, self._left_s = batch, job_id, attempts, left_s
        self._path = job_record(batch, job_id)
        self.record = JobRecord.read(self._path) or JobRecord()  # of its first start, if Slurm has started it again
        self._waiting = [index for index in attempts if index not in self.record.ended]
        self.longest_s, self.slower = 0.0, 1.0

    def next(self) -> int | None:
        """Return the next attempt to run; None if there is none, or no time for it."""
        while self._waiting:
            index = self._waiting.pop(0)
            claim = read_json(self._paths(index).claim) or {}
            if self.is_closed(index) or claim.get("job_id", self.job_id) != self.job_id:
                continue  # over, or another job's; one that this job's first start had begun, its agent records again
            likely_s = self._attempts[index].get("likely_s")
            if self.longest_s and self._left_s() < (likely_s * self.slower if likely_s else self.longest_s):
                self.give_back(f"job {self.job_id} had no time left for it", index)
                return None
            self._write(begun=(*self.record.begun, index))
            return index
        return None

    def ended(self, index: int, exit_code: int, lasted_s: float, now_s: float, *, out_of_memory: bool = False) -> bool:
        """Record the end of an attempt's step; return whether the job may go on."""
        closed, is_anothers = self.is_closed(index), exit_code == EXIT_NOT_MINE
        if (read_json(self._paths(index).claim) or {}).get("job_id") != self.job_id:
            if not is_anothers:
                self.give_back(f"job {self.job_id} could not begin it", index)
            return is_anothers
        if not is_anothers and not closed and any(end in _STOPPED for end in self._ends(index)):
            return False  # so was the job: Slurm knows why
        self.longest_s = max(self.longest_s, lasted_s)
        self.slower = max(self.slower, lasted_s / (self._attempts[index].get("likely_s") or lasted_s or 1.0))
        end = StepEnd(exit_code, now_s, out_of_memory, closed, len(self.record.begun))
        self._write(ended={**self.record.ended, index: end})
        return True

    def joined_by(self, batch: Path, attempts: Mapping[int, Mapping[str, Any]]) -> AttemptQueue:
        """Return the queue of another submission in the same job."""
        queue = AttemptQueue(batch, self.job_id, attempts, self._left_s)
        queue.longest_s, queue.slower = self.longest_s, self.slower
        return queue

    def is_complete(self, index: int) -> bool:
        """Return whether all nodes of an attempt have recorded its end."""
        return len(self._ends(index)) >= int(self._attempts[index]["nodes"])

    def give_back(self, reason: str, *also: int) -> None:
        """Begin nothing more."""
        self._write(returned=(*self.record.returned, *also, *self._waiting), reason=reason)
        self._waiting.clear()

    def is_closed(self, index: int) -> bool:
        """Return whether an attempt may no longer begin, or is to end."""
        with contextlib.suppress(OSError):  # nobody knows now; its agents ask too
            return is_closed(self.batch, index)
        return False

    def _ends(self, index: int) -> list[str]:
        files = map(self._paths(index).outcome, range(self._attempts[index]["nodes"]))
        return [outcome.get("ended_by", "") for outcome in map(read_json, files) if outcome]

    def _paths(self, index: int) -> AttemptPaths:
        return AttemptPaths(Path(self._attempts[index]["attempt_dir"]))

    def _write(self, **values: Any) -> None:
        self.record = replace(self.record, **values)
        with contextlib.suppress(OSError):  # claims and outcomes say the same, later
            self.record.write(self._path)


@dataclass
class _Step:
    """The step of a running attempt; `ended_s` of its srun, `closed_s` since when its agents are to end it."""

    queue: AttemptQueue
    index: int
    srun: subprocess.Popen[bytes]
    began_s: float
    looked_s: float = 0.0
    closed_s: float | None = None
    ended_s: float | None = None


class _Job:
    """Runs a step in each lane, with options of srun for its part of the node; `more`: as of `joining`."""

    def __init__(
        self, queue: AttemptQueue, more: Callable[[], Sequence[AttemptQueue]], lanes: int, part: Sequence[str]
    ) -> None:
        self._job_id, self._queues, self._more, self._lanes, self._part = queue.job_id, [queue], more, lanes, part
        self._looked_s = 0.0
        self._steps: list[_Step] = []
        self._is_ending = False
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> int:
        while True:
            while not self._is_ending and len(self._steps) < self._lanes and (begun := self._next()):
                self._steps.append(self._start(*begun))
            if not self._steps:
                return EXIT_FAILED if self._is_ending else 0
            time.sleep(POLL_S)
            for step in [*self._steps]:
                self._look(step)

    def _next(self) -> tuple[AttemptQueue, int] | None:
        for queue in self._queues:
            if (index := queue.next()) is not None:
                return queue, index
        now_s = time.monotonic()
        if self._steps and now_s - self._looked_s < CLOSED_POLL_S:
            return None
        self._looked_s, more = now_s, self._more()
        self._queues += more
        return self._next() if more else None

    def _start(self, queue: AttemptQueue, index: int) -> _Step:
        python = [sys.executable, "-PE" if sys.flags.ignore_environment else "-P", "-u", "-m", "dscampaign.jobs.agent"]
        srun = ["srun", "--unbuffered", "--kill-on-bad-exit=0", "--export=ALL", *self._part]
        out, err = (run_log(queue.batch, self._job_id, index, stream) for stream in ("out", "err"))
        with open(out, "ab", opener=open_private) as to_out, open(err, "ab", opener=open_private) as to_err:
            step = subprocess.Popen(
                [*srun, *python, str(queue.batch), str(index)], stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err
            )
        return _Step(queue, index, step, time.monotonic())

    def _look(self, step: _Step) -> None:
        exit_code, now_s = step.srun.poll(), time.monotonic()
        if exit_code is None:
            if now_s - step.looked_s > CLOSED_POLL_S:
                step.looked_s = now_s
                self._end_closed(step, now_s)
            return
        step.ended_s = step.ended_s or now_s
        waits = exit_code != EXIT_NOT_MINE and not step.queue.is_complete(step.index)
        if waits and now_s - step.ended_s < SIGNAL_S:
            return
        self._steps.remove(step)
        log, killed = run_log(step.queue.batch, self._job_id, step.index, "err"), False
        with contextlib.suppress(OSError):
            killed = exit_code != 0 and _OUT_OF_MEMORY.search(log.read_bytes()) is not None
        if killed or not self._is_ending:  # else the job's end may be the step's
            lasted_s = step.ended_s - step.began_s
            goes_on = step.queue.ended(step.index, exit_code, lasted_s, time.time(), out_of_memory=killed)
            self._is_ending |= not goes_on  # the other steps end by the same signal, or by themselves

    def _end_closed(self, step: _Step, now_s: float) -> None:
        """Kill a step if its attempt was closed and its agents do not end it."""
        if step.closed_s is None and step.queue.is_closed(step.index):
            step.closed_s = now_s
        if step.closed_s is None or now_s - step.closed_s < CLOSED_S:
            return
        step.srun.terminate()  # which makes Slurm kill all of the step

    def _on_term(self, _number: int, _frame: object) -> None:
        self._is_ending = True


def lane_options(env: Mapping[str, str], lanes: int, gpus: int) -> list[str]:
    """Return srun's options for an equal part of the job's node, with ``gpus``, which Slurm gives to no other step."""
    if lanes == 1:
        return []
    options = ["--exact", "--nodes=1", "--ntasks=1", f"--gpus-per-node={gpus}"]
    options.append(f"--cpus-per-task={max(1, int(env.get('SLURM_CPUS_ON_NODE') or 1) // lanes)}")
    memory_mb = int(env.get("SLURM_MEM_PER_NODE") or 0)  # else it follows from CPUs or GPUs
    return [*options, f"--mem={memory_mb // lanes}M"] if memory_mb else options


def main(argv: list[str]) -> int:
    """Run the attempts of this job, a task of the batch in ``argv[0]``.

    ``argv[1]``: see `slurm.signal_delay_s`; ``argv[2]``: how many run at a time, if the job has CPUs for them.
    """
    signal_s = float(argv[1]) + EARLY_S
    batch, task = Path(argv[0]), int(os.environ["SLURM_ARRAY_TASK_ID"])
    lanes = min(int(argv[2]), int(os.environ.get("SLURM_CPUS_ON_NODE") or 1))
    try:
        mine = _payloads(batch, task)
    except Distrusted as doubt:
        print(f"{REFUSED} not run: {doubt}", file=sys.stderr)
        return EXIT_NOT_MINE
    queue = AttemptQueue(batch, Node.from_environment(os.environ).job_id, mine, lambda: _left_s() - signal_s)
    gpus = max((int(payload["gpus_per_node"]) for payload in mine.values()), default=0)
    return _Job(queue, joining(queue, task), lanes, lane_options(os.environ, lanes, gpus)).run()


def joining(queue: AttemptQueue, task: int) -> Callable[[], list[AttemptQueue]]:
    """Return a function that returns the queues of submissions that have joined the running job since its last call."""
    prefix, known = joining_prefix(task), set[str]()

    def new() -> list[AttemptQueue]:
        queues = []
        with contextlib.suppress(OSError):
            names = {path.name for path in queue.batch.iterdir() if path.name.startswith(prefix)}
            for name in sorted(names - known):
                batch = queue.batch.with_name(name.removeprefix(prefix))
                with contextlib.suppress(Distrusted, ValueError):
                    queues.append(queue.joined_by(batch, _payloads(batch, task)))
                known.add(name)
        return queues

    return new


def _payloads(batch: Path, task: int) -> dict[int, Mapping[str, Any]]:
    path = payloads_file(batch)
    payloads = enumerate(read_array(open_trusted(path, batch.parents[2]), path))
    return {index: payload for index, payload in payloads if payload.get("task") == task}


def _left_s() -> float:
    squeue = ["squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format=%e"]
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(squeue, capture_output=True, text=True, timeout=30, env=env, check=True)
        return float(done.stdout) - time.time()
    return float("inf")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
