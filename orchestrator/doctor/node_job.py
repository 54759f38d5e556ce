"""Looks at a node from within: a short job on the shared folder, or a process of this machine for `executor: local`.

The host writes a question, the node a report; while they talk, each says the time, which bounds how far their clocks
differ. Whatever ends the examination, Ctrl-C too, ends its job.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ...jobs.probe.examine import LONGEST_S
from ...jobs.probe.node_report import NodeReport, Question, Talk, Trouble
from ...jobs.shared.files import make_private, write_atomically
from ...sbatch import prologue
from ..errors import Unreachable
from ..executors import job_request
from ..executors.base import ArrayTooLarge, JobArray, JobView, SubmissionRefused, SubmissionUnclear
from ..executors.slurm import SlurmExecutor, job_name
from ..settings import Settings
from .requirements import Wants

PROGRAM: Final = "dscampaign.jobs.probe.examine"
FOLDER: Final = ".doctor"
"""Below the campaign's folder; no campaign can have such a name."""
TIME_MIN: Final = 15
"""Time limit of the job: more than all looks can take, less than a scheduler minds."""
ASK_SLURM_S: Final = 10.0
_POLL_S: Final = 0.3
_OVER_S: Final = 120.0
"""How long after the last moment at which its job can have ended the examination is given up."""
_FILES_LAG_S: Final = 15.0
"""How long after a job's end its files may take to be seen here."""
_LOG_LINES: Final = 3

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Examined:
    """What came of it.

    Attributes:
        report: what the node saw, perhaps not all of it; None for nothing.
        trouble: why there is no report, or only a part of one; "" if all is there.
        hint: what to do about that.
        shared: whether the node saw the question, and the host the report; None where no node was reached.
        away: trying again may go well.
        folder: where the job's files are, if something went wrong.
    """

    report: NodeReport | None
    trouble: str = ""
    hint: str = ""
    shared: bool | None = None
    away: bool = False
    folder: Path | None = None


def examine(want: Wants, settings: Settings, wait_s: float, tell: Tell) -> Examined:
    """Has a node looked at that runs would get.

    Args:
        want: What they ask for.
        settings: Where the campaign is.
        wait_s: How long the job may wait in the queue.
        tell: Takes words on what it waits for.
    """
    token = uuid.uuid4().hex[:12]
    with _made(settings.dir) as room:
        folder = room / token
        make_private(folder)
        kept = False
        try:
            _question(want, settings).write(Talk(folder).question)
            if want.config.executor == "local":
                found = _locally(want, folder)
            else:
                found = _by_slurm(want, _batch(want, token, folder), wait_s, tell)
            if found.report and not found.trouble and _has_logs(found.report):
                found = replace(found, hint=f"its logs are in {folder}", folder=folder)
            kept = found.folder is not None
            return found
        finally:
            if not kept:
                shutil.rmtree(folder, ignore_errors=True)


def _has_logs(report: NodeReport) -> bool:
    """Whether a program failed whose output tells more than the report."""
    return isinstance(report.software, Trouble) or isinstance(report.collective, Trouble)


def _question(want: Wants, settings: Settings) -> Question:
    store = settings.store_without_password
    return Question(
        python=want.config.python or sys.executable,
        env=want.config.env,
        ranks=want.ranks,
        gpus=want.gpus,
        on_gpus=want.on_gpus,
        folder=str(settings.dir),
        files=want.files,
        nvme_path=want.nvme_path,
        store=None if store.startswith("sqlite") else store,
        asked_s=time.time(),
    )


@contextlib.contextmanager
def _made(dir: Path) -> Iterator[Path]:
    """The folder for examinations; what was made for it and is empty again goes at the end."""
    room = dir / FOLDER
    new = [folder for folder in (room, *room.parents) if not folder.exists()]
    make_private(room)
    try:
        yield room
    finally:
        for folder in new:
            with contextlib.suppress(OSError):  # not empty: something went wrong there, or somebody uses it
                folder.rmdir()


def _batch(want: Wants, token: str, folder: Path) -> JobArray:
    """One job for one node, with what an attempt would ask for."""
    resources: dict[str, Any] = job_request.resources(want.config, prologue=prologue())
    several = want.config.nodes > 1
    for name in ("signal_delay_s", *(["nodelist"] if several else [])):  # a list of several nodes would ask for all
        resources.pop(name, None)
    minutes = min(want.config.slurm.time_min, TIME_MIN)
    return JobArray(token, job_name(token), folder, 1, {**resources, "nodes": 1, "time": str(minutes)}, PROGRAM)


# -- by Slurm ----------------------------------------------------------------------------------------------------------


def _by_slurm(want: Wants, batch: JobArray, wait_s: float, tell: Tell) -> Examined:
    executor = SlurmExecutor()
    try:
        [job_id] = executor.submit(batch)
    except SubmissionRefused as exc:
        return Examined(None, f"sbatch refused the job: {_last(str(exc))}", "change what `slurm:` asks for")
    except (ArrayTooLarge, SubmissionUnclear, Unreachable) as exc:
        return Examined(None, _last(str(exc)), "try again", away=True)
    tell(f"job {job_id} looks at a node with {want.gpus} GPUs; Ctrl-C cancels it")
    watch = _Watch(executor, batch, job_id, wait_s, tell)
    try:
        return watch.until_over()
    finally:
        if not watch.over:
            with contextlib.suppress(Unreachable):
                executor.cancel([job_id])


class _Watch:
    """Waits for the job and its report."""

    def __init__(self, executor: SlurmExecutor, batch: JobArray, job_id: str, wait_s: float, tell: Tell) -> None:
        self._executor, self._batch, self._job_id, self._tell = executor, batch, job_id, tell
        self._talk = Talk(batch.folder)
        self._wait_s, self._since_s = wait_s, time.time()
        self._ask_s = time.monotonic() + ASK_SLURM_S
        self._said = ""
        self._seen: JobView | None = None
        self.over = False

    def until_over(self) -> Examined:
        """What came of it, once the report is complete, the job is over, or it has waited too long."""
        deadline_s, over_s = time.monotonic() + self._wait_s, 0.0
        while True:
            if report := _complete(self._talk):
                self.over = True  # it ends by itself
                return Examined(report, shared=True)
            job = self._job()
            if job is not None and job.terminal:
                self.over = True
                over_s = over_s or time.monotonic()
                if time.monotonic() - over_s > _FILES_LAG_S:
                    return self._ended(job)
            if job is not None and job.pending and time.monotonic() > deadline_s:
                reason = f"job {self._job_id} waited in the queue for {self._wait_s / 60:.0f} min: {job.reason}"
                return Examined(None, reason, "try again later, or with a longer --wait", away=True)
            if time.monotonic() > deadline_s + 60 * TIME_MIN + _OVER_S:
                reason = f"neither the job nor Slurm says anything any more of job {self._job_id}"
                return Examined(None, reason, "try again", away=True)
            time.sleep(_POLL_S)

    def _job(self) -> JobView | None:
        """The job as Slurm last showed it; it is not asked at every look."""
        if time.monotonic() >= self._ask_s and not self.over:
            self._ask_s = time.monotonic() + ASK_SLURM_S
            with contextlib.suppress(Unreachable):
                looked = self._executor.list_jobs({self._batch.token: {0}}, self._since_s)
                self._seen = looked.jobs.get((self._batch.token, 0), self._seen)
            self._say()
        return self._seen

    def _say(self) -> None:
        job = self._seen
        if job is None:
            return
        words = f"waits in the queue: {job.reason}" if job.pending else f"is {job.state.lower()}"
        if words != self._said and not job.terminal:
            self._tell(f"job {self._job_id} {words}")
            self._said = words

    def _ended(self, job: JobView) -> Examined:
        """The job is over without a complete report."""
        report, folder = NodeReport.read(self._talk.report), self._batch.folder
        state = f"job {self._job_id} on {job.nodes or 'no node'} ended as {job.state}"
        if report is not None:
            reason = f"{state} while it looked at: {report.running}"
            return Examined(report, reason, f"its log is in {folder}", shared=True, folder=folder)
        if log := _log_tail(folder):
            return Examined(None, f"{state}: {log}", f"its files are in {folder}", shared=True, folder=folder)
        hint = f"is {folder} the same folder on the nodes? Choose one that all of them see"
        return Examined(None, f"{state}, and nothing that it wrote is seen here", hint, shared=False, folder=folder)


def _complete(talk: Talk) -> NodeReport | None:
    """The report, once nothing is left to look at. Answers the node's greeting on the way."""
    os.listdir(talk.report.parent)  # noqa: PTH208 - makes NFS look again for names that were not there
    if talk.hello.exists() and not talk.echo.exists():
        write_atomically(talk.echo, json.dumps({"heard_s": time.time()}))
    report = NodeReport.read(talk.report)
    return report if report is not None and not report.running else None


def _log_tail(folder: Path) -> str:
    """The last lines of the job's logs, "" if there are none."""
    lines = [
        line.strip()
        for log in sorted(folder.glob("*_log.*"))
        for line in log.read_text(errors="replace").splitlines()
        if line.strip()
    ]
    return " · ".join(lines[-_LOG_LINES:])


def _last(text: str) -> str:
    return (text.strip().splitlines() or [text])[-1].removeprefix("sbatch: error: ")


# -- on this machine ---------------------------------------------------------------------------------------------------


def _locally(want: Wants, folder: Path) -> Examined:
    """As the local executor starts an attempt, but waits for it."""
    talk = Talk(folder)
    script = "\n".join([*want.config.local.setup, 'exec "$@"'])
    command = ["bash", "-c", script, "campaign", sys.executable, "-u", "-m", PROGRAM, str(folder)]
    with (folder / "0_log.out").open("wb") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + LONGEST_S
        try:
            while child.poll() is None and time.monotonic() < deadline_s:
                if report := _complete(talk):
                    return Examined(report, shared=True)
                time.sleep(_POLL_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if report := _complete(talk):
        return Examined(report, shared=True)
    what = "ended" if child.returncode is not None and child.returncode >= 0 else "did not end in time"
    reason = f"the examination {what}: {_log_tail(folder) or f'exit code {child.returncode}'}"
    return Examined(NodeReport.read(talk.report), reason, f"its files are in {folder}", folder=folder)
