"""Check whether this machine, its cluster, its store and a node are fit for a campaign.

A node is examined from within, by a short job on the shared folder, or by a process of this machine: the host writes a
question, the node a report. Any end of the examination, Ctrl-C too, ends its job.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dscampaign.files import ours
from dscampaign.files.private_files import make_private
from dscampaign.jobs.probe.examine import missing_files
from dscampaign.jobs.probe.node_report import QUESTION, REPORT, NodeReport, Question
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.executors import job_request
from dscampaign.orchestrator.executors.base import (
    ArrayTooLarge,
    Executor,
    JobArray,
    JobView,
    SubmissionRefused,
    SubmissionUnclear,
)
from dscampaign.orchestrator.executors.local import EXAMINE, LocalExecutor
from dscampaign.orchestrator.executors.slurm import SlurmExecutor
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.reconcile.notify import TEST, WAYS, message, send
from dscampaign.orchestrator.settings import Settings

from .check import At, Check
from .check_host import host_checks
from .check_node import files_check, node_checks
from .check_slurm import cluster_checks
from .requirements import Requirements

if TYPE_CHECKING:
    from dscampaign.orchestrator.campaign.location import Location

FOLDER: Final = ".doctor"
"""Below the campaign's folder; no campaign can have this name."""
TIME_MIN: Final = 15
"""Time limit of the job: more than all sections can take."""
ASK_SLURM_S: Final = 10.0
_POLL_S: Final = 0.3
_OVER_S: Final = 120.0
"""The examination is given up this long after the last moment at which its job can have ended."""
_LOG_LINES: Final = 3

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Examined:
    """The result."""

    report: NodeReport | None  # the node's, perhaps in part; None for none
    trouble: str = ""  # why the report is missing or incomplete; "" if it is whole
    hint: str = ""  # the advice
    # whether the node saw the question, and the host the report; None if no node was reached
    shared: bool | None = None
    away: bool = False  # trying again may go well
    folder: Path | None = None  # the folder of the job's files, if something went wrong


def examine(required: Requirements, settings: Settings, wait_s: float, tell: Tell) -> Examined:
    """Examine a node that runs would get; its job may wait for `wait_s` in the queue."""
    token, room = job_request.new_token("campaign-doctor", ()), settings.dir / FOLDER
    folder, examined = room / token, None
    new = [place for place in (room, *room.parents) if not place.exists()]
    make_private(room)
    try:
        make_private(folder)
        _question(required, settings).write(folder / QUESTION)
        resources: dict[str, Any] = job_request.resources(required.config)
        several = required.config.nodes > 1
        for name in ("signal_delay_s", *(["nodelist"] if several else [])):  # several nodes: it would ask for all
            resources.pop(name, None)
        resources |= {"nodes": 1, "time": str(min(required.config.slurm.time_min, TIME_MIN))}
        batch = JobArray(token, folder, 1, resources, EXAMINE)
        examined = _by_job(required, batch, wait_s, tell)
        return examined
    finally:
        if examined is None or examined.folder is None:
            ours.remove(folder)
        for place in new:
            with contextlib.suppress(OSError):  # not empty: something went wrong there, or somebody uses it
                place.rmdir()


def _question(required: Requirements, settings: Settings) -> Question:
    store, image = settings.store_without_password, required.config.container
    return Question(
        python=required.config.python or (job_request.IMAGE_PYTHON if image else sys.executable),
        setup_chooses=required.config.python is None and image is None,
        launcher="srun" if required.config.launcher == "python" else required.config.launcher or "deepspeed",
        env=job_request.env_of(required.config),
        container=job_request.container_of(required.config),
        ranks=required.ranks,
        gpus=required.gpus,
        on_gpus=required.on_gpus,
        files=required.files,
        ops=required.ops,
        nvme_path=required.nvme_path,
        store=None if store.startswith("sqlite") else store,
    )


def _by_job(required: Requirements, batch: JobArray, wait_s: float, tell: Tell) -> Examined:
    local = required.config.executor == "local"
    executor: Executor = LocalExecutor(batch.folder.parent) if local else SlurmExecutor()
    try:
        [job_id] = executor.submit(batch)
    except SubmissionRefused as exc:
        return Examined(None, f"sbatch refused the job: {_last(str(exc))}", "change the `slurm` section")
    except (ArrayTooLarge, SubmissionUnclear, Unreachable) as exc:
        return Examined(None, _last(str(exc)), "try again", away=True)
    gpus = f" with {count(required.gpus, 'GPU')}" if required.gpus else ""
    tell(f"job {job_id} is checking a node{gpus}; Ctrl-C cancels it")
    examined = None
    try:
        examined = _outcome(executor, batch, job_id, wait_s, tell)
        return examined
    finally:
        if examined is None or examined.shared is None:  # it waits, or runs
            with contextlib.suppress(Unreachable):
                executor.cancel([job_id])


def _outcome(executor: Executor, batch: JobArray, job_id: str, wait_s: float, tell: Tell) -> Examined:
    last, over_s, deadline_s = "", math.inf, time.monotonic() + wait_s
    looks = _looks(executor, batch, job_id)
    while True:
        job = next(looks)  # before the report is read, so that what a job writes last counts
        os.listdir(batch.folder)  # noqa: PTH208 - makes NFS look again for names that were not there
        if (report := NodeReport.read(batch.folder / REPORT)) and not report.running:
            if {"software", "collective"} & report.troubles.keys():
                return Examined(report, hint=f"its logs are in {batch.folder}", shared=True, folder=batch.folder)
            return Examined(report, shared=True)
        now_s = time.monotonic()
        suffix = "" if job.reason in ("", "None") else f": {job.reason}"
        progress = f"waits in the queue{suffix}" if job.pending else f"is {job.state.lower()}"
        if progress != last and not job.terminal:
            tell(f"job {job_id} {progress}")
            last = progress
        if job.terminal:
            over_s = min(over_s, now_s)
            if now_s - over_s >= executor.outcome_grace_s:
                return _ended(job, batch.folder)
        elif job.pending and now_s > deadline_s:
            reason = f"job {job_id} waited in the queue for {wait_s / 60:.0f} min{suffix}"
            return Examined(None, reason, "try again later, or with a longer --wait", away=True)
        elif now_s > deadline_s + 60 * TIME_MIN + _OVER_S:
            return Examined(None, f"lost contact with job {job_id}", "try again", away=True)


def _looks(executor: Executor, batch: JobArray, job_id: str) -> Iterator[JobView]:
    """Yield the job as last seen; Slurm is asked every ten seconds only."""
    every_s = ASK_SLURM_S if isinstance(executor, SlurmExecutor) else 0.0
    job, since_s, ask_s = JobView(batch.token, 0, job_id, "SUBMITTED"), time.time(), 0.0
    while True:
        if time.monotonic() >= ask_s and not job.terminal:
            ask_s = time.monotonic() + every_s
            with contextlib.suppress(Unreachable):
                job = executor.list_jobs({batch.token: {0}}, since_s).jobs.get((batch.token, 0), job)
        yield job
        time.sleep(_POLL_S)


def _ended(job: JobView, folder: Path) -> Examined:
    report = NodeReport.read(folder / REPORT)
    how = "" if job.state == "GONE" else f" as {job.state}"
    state = f"job {job.job_id}{f' on {job.nodes}' if job.nodes else ''} ended{how}"
    examined = Examined(report, state, f"its files are in {folder}", shared=True, folder=folder)
    if report is not None:
        return replace(examined, trouble=f"{state} while checking: {report.running}")
    logs = sorted([*folder.glob("*_log.*"), *folder.glob("0.log")])
    lines = (line.strip() for log in logs for line in log.read_text(errors="replace").splitlines())
    if written := [*filter(None, lines)]:
        return replace(examined, trouble=f"{state}: {' · '.join(written[-_LOG_LINES:])}")
    hint = f"is {folder} the same folder on the nodes? Choose a folder that all of them see"
    return replace(examined, trouble=f"{state}, and it left no file that this host can see", hint=hint, shared=False)


def _last(text: str) -> str:
    return (text.strip().splitlines() or [text])[-1].removeprefix("sbatch: error: ")


def doctor(
    location: Location, requirements: Sequence[Requirements], *, on_node: bool, wait_s: float, tell: Tell
) -> list[Check]:
    """Return all verdicts, `on_node` also on a node for the requirement that asks for the most.

    Its job may wait in the queue for `wait_s`; `tell` prints progress.
    """
    by_slurm = [required for required in requirements if required.config.executor == "slurm"]
    checks = list(cluster_checks(by_slurm)) if by_slurm or (not requirements and shutil.which("sinfo")) else []
    paths = sorted({path for required in requirements for path in required.files})
    if paths and not by_slurm:
        checks += [files_check("host.files", missing_files(paths), At(f"host {socket.gethostname()}"))]
    shared = False
    if on_node and requirements and not any(check.away for check in checks):  # else its job would wait, too
        try:
            examined = examine(requirements[0], location.settings, wait_s, tell)
        except OSError as exc:
            trouble = f"{exc.filename or location.settings.dir}: {exc.strerror or exc}"
            examined = Examined(None, trouble, "see folder.writable")
        checks += _of_node(examined, requirements[0])
        shared = examined.shared is True
    return [*host_checks(location, requirements, shared=shared), *checks]


def _of_node(examined: Examined, required: Requirements) -> Iterator[Check]:
    at = At(f"node {examined.report.node}" if examined.report else "node")
    if examined.trouble:
        yield at.problem("node.reached", examined.trouble, examined.hint, away=examined.away)
    elif required.config.executor == "slurm":
        yield at.ok("node.reached", f"a job for {required.named} ran there; it sees the folder as this host does")
    if examined.report is not None:
        yield from node_checks(examined.report, required, examined.hint)


def notify_checks(name: str, notify: Mapping[str, Any]) -> Iterator[Check]:
    """Send a test message by each way of a spec's `notify`; yield a check of each."""
    for way in (way for way in WAYS if way in notify):
        trouble, about = send(notify, way, message(name, TEST, {})), f"notify.{way}"
        if trouble:
            yield At("notify").problem(about, f"not delivered: {trouble}", f"correct {about}, or the service")
        else:
            yield At("notify").ok(about, "a test message was delivered")
