"""Examine a node for `campaign doctor`, and write a report without a verdict.

Started by a job as   python -m dscampaign.jobs.probe.examine FOLDER   with the question in FOLDER/question.json.
The report is written anew after each section, so that a killed job leaves the others.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.file_systems import file_system, try_writing
from dscampaign.files.ownership import distrust
from dscampaign.files.private_files import open_private
from dscampaign.jobs.agent import container, launch, launchers
from dscampaign.jobs.agent.node import Node, free_port
from dscampaign.jobs.agent.node_facts import memory_limit_bytes
from dscampaign.jobs.shared.layout import SHARED_MEMORY
from dscampaign.jobs.shared.nvml import GpuMeter, each_gpu, gpu_names, listed, session, text
from dscampaign.jobs.shared.payload import SETUP_PYTHON
from dscampaign.jobs.shared.process_groups import signal_group
from dscampaign.jobs.shared.spool_steps import tail

from .node_report import QUESTION, REPORT, Collective, Device, Disk, Gpus, Host, NodeReport, Question, Software

EXIT_REFUSED: Final = 75
EXIT_ENDED: Final = 128 + signal.SIGTERM
SOFTWARE_S: Final = 240.0  # a first import over a busy network file system takes minutes
COLLECTIVE_S: Final = 240.0
GB: Final = 1e9
_PROGRAM: Final = str(Path(__file__).parents[1] / "trainer/training_python.py")
_GRACE_S: Final = 15.0

_ERROR: Final = re.compile(r"^\s*(?:\[[^\]]*\]: ?)?([A-Za-z_][\w.]*(?:Error|Exception)\b.*)$")
_running: set[int] = set()  # process groups
Look = Callable[[], Any]


def main(argv: list[str]) -> int:
    """Examine this node as the question in ``argv[0]`` asks; return the exit code."""
    os.umask(0o077)
    folder = Path(argv[0])
    if doubt := distrust(folder / QUESTION, folder.parent):
        print(f"not examined: {doubt}", file=sys.stderr)
        return EXIT_REFUSED
    signal.signal(signal.SIGTERM, _end)
    question = Question.load(folder / QUESTION)
    assert question is not None  # it was trusted
    _Examination(question, folder, Node.from_environment(os.environ)).run()
    sys.stdout.flush()
    os._exit(0)  # a look that hangs in the driver must not keep the job alive


def _end(*_: object) -> None:
    for group in tuple(_running):
        signal_group(group)
    os._exit(EXIT_ENDED)


class _Examination:
    def __init__(self, question: Question, folder: Path, node: Node) -> None:
        chosen = os.environ.get(SETUP_PYTHON) if question.setup_chooses else None
        self.question, self.folder, self.node = replace(question, python=chosen or question.python), folder, node
        on_cpu = {} if question.on_gpus else {"DS_ACCELERATOR": "cpu"}
        self.env = {"OMP_NUM_THREADS": "1", **os.environ, **question.env, **on_cpu}
        self.report = NodeReport(node.name)

    def run(self) -> None:
        for section, (look, timeout_s) in self._looks().items():
            self._write(running=section)
            result, trouble = _within(timeout_s, look)
            self._write(**({"troubles": {**self.report.troubles, section: trouble}} if trouble else {section: result}))
        self._write(running="")

    def _looks(self) -> dict[str, tuple[Look, float]]:
        question = self.question
        looks: dict[str, tuple[Look, float]] = {"host": (lambda: _host(self.node), 10.0)}
        if question.gpus:  # before anything of ours uses them
            looks["gpus"] = (lambda: census(listed(self.node.visible_devices), question.gpus), 30.0)
        looks["missing_files"] = (lambda: missing_files(question.files), 30.0)
        if question.store:
            looks["store_reached"] = (self._reach_store, 30.0)
        if nvme_path := question.nvme_path:
            looks["nvme"] = (lambda: _disk(Path(nvme_path)), 30.0)
        looks["software"] = (self._software, SOFTWARE_S + _GRACE_S)
        looks["collective"] = (self._collective, COLLECTIVE_S + _GRACE_S)
        return looks

    def _reach_store(self) -> bool:
        from dscampaign.db.store import Store  # SQLAlchemy, where there is a store to reach

        Store.open(os.environ.get("CAMPAIGN_STORE") or str(self.question.store)).close()
        return True

    def _software(self) -> Software | None:
        output = self.folder / "software.json"
        command = [self.question.python, _PROGRAM, "software", str(output), *self.question.ops]
        self._start(command, self.env, SOFTWARE_S, output.with_suffix(".log"))
        return Software.read(output)

    def _collective(self) -> Collective | None:
        question, output, hostfile = self.question, self.folder / "collective.json", self.folder / "hostfile"
        write_atomically(hostfile, launch.hostfile_text(1, question.ranks))
        place = launchers.NodeLaunch(question.python, 1, question.ranks, 0, "127.0.0.1", free_port(), str(hostfile))
        command = [*launchers.command(question.launcher, place), _PROGRAM, "all_reduce", str(output)]
        env = self.env | {"CAMPAIGN_VISIBLE_DEVICES": self.node.visible_devices if question.gpus else ""}
        self._start(command, env, COLLECTIVE_S, output.with_suffix(".log"))
        return Collective.read(output)

    def _start(self, command: list[str], env: dict[str, str], timeout_s: float, log: Path) -> None:
        question = self.question
        if question.container:
            command, env = container.examined(command, env, question.container, question.env, self.folder)
        run_program(command, env, timeout_s, log)

    def _write(self, **changed: Any) -> None:
        self.report = replace(self.report, **changed)
        self.report.write(self.folder / REPORT)


def _host(node: Node) -> Host:
    limit = memory_limit_bytes()
    return Host(
        cpus=len(os.sched_getaffinity(0)),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB,
        limit_gb=None if limit is None else limit / GB,
        shm_gb=shutil.disk_usage(SHARED_MEMORY).total / GB if SHARED_MEMORY.is_dir() else 0.0,
        address=node.reachable_address() or "",
    )


def _disk(folder: Path) -> Disk:
    try_writing(folder)
    return Disk(str(folder), file_system(folder), shutil.disk_usage(folder).free / GB)


def census(visible: Sequence[str], requested: int) -> Gpus:
    """Return the GPUs of a job: the ``visible`` entries, or all. Raises Unavailable: the driver does not answer."""
    with session() as nvml:
        names = gpu_names(nvml, visible)
        names = names if visible else names[: requested or None]
        devices, troubles = each_gpu(nvml, names, lambda number, _, gpu: _device(nvml, number, gpu))
        version = int(nvml.nvmlSystemGetCudaDriverVersion())  # 12080 is 12.8
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        return Gpus(text(nvml.nvmlSystemGetDriverVersion()), cuda, tuple(devices), tuple(troubles))


def _device(nvml: Any, number: int, handle: Any) -> Device:
    meter = GpuMeter(nvml, handle, number)
    facts = meter.device() | meter.read()
    memory = facts.get("mem_total_gb"), facts.get("mem_used_gb"), facts.get("ecc_errors")
    links = 0
    with suppress(nvml.NVMLError):  # it has no more links
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            links += nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED
    return Device(number, facts.get("name", ""), *memory, links)


def missing_files(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths that this user cannot see on this host."""
    return tuple(path for path in paths if not os.path.exists(path))  # noqa: PTH110 - pathlib would raise


def _within(timeout_s: float, look: Look) -> tuple[Any, str]:
    results: list[tuple[Any, str]] = []

    def watched() -> None:
        try:
            result = look()
            results.append((result, "" if result is not None else "nothing was written"))
        except Exception as exc:  # noqa: BLE001 - a look that fails must hide no other
            results.append((None, str(exc) if isinstance(exc, ChildFailed) else f"{type(exc).__name__}: {exc}"))

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return results[0] if results else (None, f"no answer within {timeout_s:.0f} s")


# -- programs ----------------------------------------------------------------------------------------------------


class ChildFailed(Exception):
    """A program failed, or did not end in time; the message has its last line."""


def run_program(command: Sequence[str], env: Mapping[str, str], timeout_s: float, log: Path) -> None:
    """Run a program to its end, in the folder of its log, where nothing shadows a module. Raises ChildFailed."""
    with open(log, "wb", opener=open_private) as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=log.parent,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as exc:
            raise ChildFailed(f"{command[0]}: {exc.strerror}") from exc
        _running.add(child.pid)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired as exc:
            raise ChildFailed(f"did not end within {timeout_s:.0f} s{_last_line(log)}") from exc
        finally:
            signal_group(child.pid)
            _running.discard(child.pid)
    if code:
        raise ChildFailed(f"ended with code {code}{_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in tail(log) if line.strip()]
    errors = [match[1] for line in lines if (match := _ERROR.match(line))]
    last = (errors or lines)[-1:]
    return f": {last[0]}" if last else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
