"""Runs the attempts of one job in turn, each as a step of its own: one that fails, hangs or is killed ends alone.

Started in the batch script:  python -m dscampaign.jobs.agent.shared_job BATCH_DIR SIGNAL_DELAY_S
Its record tells the reconciler what became of each. It decides nothing about an attempt: the agents' claims do. If it
dies, so does the job, and what nobody has claimed goes back.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dscampaign.files.atomic_files import read_json
from dscampaign.files.ownership import Distrusted, open_trusted
from dscampaign.files.private_files import open_private
from dscampaign.jobs.shared.job_array import is_closed, read_array
from dscampaign.jobs.shared.job_record import JobRecord, StepEnd, job_record, run_log
from dscampaign.jobs.shared.layout import AttemptPaths, payloads_file

from .agent import EXIT_FAILED
from .evidence import EXIT_NOT_MINE, REFUSED
from .node import Node

POLL_S = 1.0
CLOSED_S = 120.0
"""How long the agents of a closed attempt may take to end it; after that the job ends."""
EARLY_S = 60.0
"""How early Slurm may send the signal to stop, by sbatch's manual."""
SIGNAL_S = 3.0
"""How long after the end of a step without an outcome a signal to the job that ended it may come."""

_OUT_OF_MEMORY = re.compile(
    rb"^(?:slurmstepd\S*|srun): error: .*(?:oom[-_ ]kill|Out Of Memory|exceeded memory limit)", re.MULTILINE
)
_STOPPED: Final = ("signal", "stop")
"""Ends by a signal, which Slurm sends to all of a job."""


class AttemptQueue:
    """Chooses the attempts of a job to run, one after the other, and keeps the job's record.

    Args:
        attempts: the payloads of this job, by their places.
        left_s: returns the time that the job has left for training.
    """

    def __init__(
        self, batch: Path, job_id: str, attempts: Mapping[int, Mapping[str, Any]], left_s: Callable[[], float]
    ) -> None:
        self._batch, self._job_id, self._attempts, self._left_s = batch, job_id, attempts, left_s
        self._path = job_record(batch, job_id)
        self.record = JobRecord.read(self._path) or JobRecord()  # of its first start, if Slurm has started it again
        self._waiting = [index for index in attempts if index not in self.record.ended]
        self._longest_s = 0.0

    def next(self) -> int | None:
        """Return the next attempt to run; None if there is none, or no time for one more."""
        while self._waiting:
            index = self._waiting.pop(0)
            if self.is_closed(index) or not self._may_run(index):
                continue
            if self._longest_s and self._left_s() < self._longest_s:
                self.give_back(f"job {self._job_id} had no time left for it", index)
                return None
            self._write(begun=(*self.record.begun, index))
            return index
        return None

    def ended(self, index: int, exit_code: int, lasted_s: float, now_s: float, *, out_of_memory: bool = False) -> bool:
        """Record the end of an attempt's step; return whether the job may go on."""
        closed, is_anothers = self.is_closed(index), exit_code == EXIT_NOT_MINE
        if (read_json(self._paths(index).claim) or {}).get("job_id") != self._job_id:
            if not is_anothers:
                self.give_back(f"job {self._job_id} could not begin it", index)
            return is_anothers
        if not is_anothers and not closed and any(end in _STOPPED for end in self._ends(index)):
            return False  # so was the job: Slurm knows why
        self._longest_s = max(self._longest_s, lasted_s)
        self._write(ended={**self.record.ended, index: StepEnd(exit_code, now_s, out_of_memory, closed)})
        return True

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
            return is_closed(self._batch, index)
        return False

    def _may_run(self, index: int) -> bool:
        """Return whether no other job has it. If this job's first start had begun it, its agent leaves a record."""
        claim = read_json(self._paths(index).claim)
        return claim is None or claim.get("job_id") == self._job_id

    def _ends(self, index: int) -> list[str]:
        files = map(self._paths(index).outcome, range(self._attempts[index]["nodes"]))
        return [outcome.get("ended_by", "") for outcome in map(read_json, files) if outcome]

    def _paths(self, index: int) -> AttemptPaths:
        return AttemptPaths(Path(self._attempts[index]["attempt_dir"]))

    def _write(self, **values: Any) -> None:
        self.record = replace(self.record, **values)
        with contextlib.suppress(OSError):  # claims and outcomes say the same, later
            self.record.write(self._path)


class _Job:
    def __init__(self, batch: Path, job_id: str, queue: AttemptQueue) -> None:
        self._batch, self._job_id, self._queue = batch, job_id, queue
        self._signals: list[int] = []
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> int:
        while not self._signals and (index := self._queue.next()) is not None:
            began_s = time.monotonic()
            exit_code = self._run_step(index)
            if exit_code is None:
                self._queue.give_back(f"job {self._job_id} ended as another run in it did not end")
                return EXIT_FAILED
            if exit_code != EXIT_NOT_MINE and not self._queue.is_complete(index):
                time.sleep(SIGNAL_S)
            if self._signals:
                break
            lasted_s, killed = time.monotonic() - began_s, exit_code != 0 and self._ran_out_of_memory(index)
            if not self._queue.ended(index, exit_code, lasted_s, time.time(), out_of_memory=killed):
                return EXIT_FAILED
        return EXIT_FAILED if self._signals else 0

    def _ran_out_of_memory(self, index: int) -> bool:
        with contextlib.suppress(OSError):
            return _OUT_OF_MEMORY.search(run_log(self._batch, self._job_id, index, "err").read_bytes()) is not None
        return False

    def _run_step(self, index: int) -> int | None:
        """Return the exit code of srun; None if the attempt was closed and its agents did not end it."""
        python = [sys.executable, "-PE" if sys.flags.ignore_environment else "-P", "-u", "-m", "dscampaign.jobs.agent"]
        srun = ["srun", "--unbuffered", "--kill-on-bad-exit=0", "--export=ALL"]
        out, err = (run_log(self._batch, self._job_id, index, stream) for stream in ("out", "err"))
        with open(out, "ab", opener=open_private) as to_out, open(err, "ab", opener=open_private) as to_err:
            step = subprocess.Popen(
                [*srun, *python, str(self._batch), str(index)], stdin=subprocess.DEVNULL, stdout=to_out, stderr=to_err
            )
        closed_s = None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return step.wait(POLL_S)
            if closed_s is None and self._queue.is_closed(index):
                closed_s = time.monotonic()
            if closed_s is not None and time.monotonic() - closed_s > CLOSED_S:
                return None

    def _on_term(self, number: int, _frame: object) -> None:
        self._signals.append(number)


def main(argv: list[str]) -> int:
    """Run the attempts of this job, a task of the batch in ``argv[0]``; ``argv[1]``: see `slurm.signal_delay_s`."""
    signal_s = float(argv[1]) + EARLY_S
    batch, task = Path(argv[0]), int(os.environ["SLURM_ARRAY_TASK_ID"])
    path = payloads_file(batch)
    try:
        payloads = enumerate(read_array(open_trusted(path, batch.parents[2]), path))
        mine = {index: payload for index, payload in payloads if payload.get("task") == task}
    except Distrusted as doubt:
        print(f"{REFUSED} not run: {doubt}", file=sys.stderr)
        return EXIT_NOT_MINE
    job_id = Node.from_environment(os.environ).job_id
    return _Job(batch, job_id, AttemptQueue(batch, job_id, mine, lambda: _left_s() - signal_s)).run()


def _left_s() -> float:
    """Return the seconds until Slurm ends the job; infinite if nobody knows."""
    squeue = ["squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format=%e"]
    env = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(squeue, capture_output=True, text=True, timeout=30, env=env, check=True)
        return float(done.stdout) - time.time()
    return float("inf")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
