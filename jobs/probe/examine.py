"""One node for `campaign doctor`: looks at it and writes down what it saw. It judges nothing.

Started by a job as   python -m dscampaign.jobs.probe.examine FOLDER   with the question in FOLDER/question.json.
Every look has a time of its own; the report is written anew after each, so that a job which is killed leaves the rest.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ..agent import launch
from ..agent.node import Node, free_port
from ..shared.files import read_json, write_atomically
from ..shared.ownership import distrust
from .children import ChildFailed, run
from .disk_speed import measure
from .gpu_census import census
from .host_census import host
from .node_report import Collective, Files, NodeReport, Question, Software, StoreSeen, Talk, Trouble

EXIT_REFUSED: Final = 75
SHARED_BYTES: Final = 256 << 20
NVME_BYTES: Final = 4 << 30
DISK_S: Final = 10.0
"""Seconds of writing, and of reading."""
SOFTWARE_S: Final = 240.0
"""A first import over a busy network file system takes minutes."""
COLLECTIVE_S: Final = 240.0
LONGEST_S: Final = 2 * SOFTWARE_S + 120
"""All looks together, at most."""
_GRACE_S: Final = 15.0
_POLL_S: Final = 0.1

JobListing = Callable[[], Any]


def main(argv: list[str]) -> int:
    """Examines this node as ``argv[0]`` asks; returns the exit code."""
    os.umask(0o077)
    folder = Path(argv[0])
    talk = Talk(folder)
    if why := distrust(talk.question, folder):
        print(f"not examined: {why}", file=sys.stderr)
        return EXIT_REFUSED
    _Examination(Question.read(talk.question), talk, Node.from_environment(os.environ)).run()
    sys.stdout.flush()
    os._exit(0)  # a look that hangs in the driver must not keep the job alive


class _Examination:
    """The looks, one after another."""

    def __init__(self, question: Question, talk: Talk, node: Node) -> None:
        self.question, self.talk, self.node = question, talk, node
        self.env = _environment(question)
        self.report = NodeReport(node.name)
        self.clock: tuple[float, float] | None = None

    def run(self) -> None:
        """Looks at everything that was asked for."""
        threading.Thread(target=self._greet, daemon=True).start()
        for name, (look, timeout_s) in self._looks().items():
            self._write(replace(self.report, running=name))
            self._write(replace(self.report, **{name: _within(timeout_s, look)}))
        self._write(replace(self.report, running=""))

    def _looks(self) -> dict[str, tuple[JobListing, float]]:
        question = self.question
        looks: dict[str, tuple[JobListing, float]] = {"host": (host, 10.0)}
        if question.gpus:  # before anything of ours uses them
            looks["gpus"] = (self._gpus, 30.0)
        looks["files"] = (lambda: Files(_missing(question.files)), 30.0)
        if question.store:
            looks["store"] = (self._store, 30.0)
        looks["disk"] = (lambda: measure(Path(question.folder), SHARED_BYTES, DISK_S), 4 * DISK_S)
        if question.nvme_path:
            path = Path(question.nvme_path)
            looks["nvme"] = (lambda: measure(path, NVME_BYTES, DISK_S), 4 * DISK_S)
        looks["software"] = (self._software, SOFTWARE_S + _GRACE_S)
        looks["collective"] = (self._collective, COLLECTIVE_S + _GRACE_S)
        return looks

    def _gpus(self) -> Any:
        import pynvml  # here: a node without the library can be looked at too

        visible = [name.strip() for name in self.node.visible_devices.split(",") if name.strip()]
        try:
            return census(pynvml, visible, self.question.gpus)
        except pynvml.NVMLError as exc:
            return Trouble(str(exc))

    def _store(self) -> StoreSeen:
        from ...db.store import Store  # SQLAlchemy, where there is a store to reach

        store = Store.open(os.environ.get("CAMPAIGN_STORE") or str(self.question.store))
        try:
            with store.read() as conn:
                store.now(conn)  # the first answer pays for the connection
                before_s = time.time()
                found_s = store.now(conn)
                return StoreSeen(found_s - (before_s + time.time()) / 2)
        finally:
            store.close()

    def _software(self) -> Any:
        script, output = Path(__file__).parents[1] / "trainer/software.py", self.talk.software
        run([self.question.python, str(script), str(output)], self.env, SOFTWARE_S, self.talk.software_log)
        return Software(**json.loads(output.read_text()))

    def _collective(self) -> Any:
        talk, question = self.talk, self.question
        talk.hostfile.write_text(launch.hostfile_text(1, question.ranks))
        launcher = launch.launcher_command(question.python, talk.hostfile, 0, "127.0.0.1", free_port())
        script = Path(__file__).parents[1] / "trainer/all_reduce.py"
        command = [*launcher, "--no_local_rank", str(script), str(talk.collective)]
        devices = self.node.visible_devices if question.gpus else ""
        run(command, self.env | {"CAMPAIGN_VISIBLE_DEVICES": devices}, COLLECTIVE_S, talk.collective_log)
        return Collective(**json.loads(talk.collective.read_text()))

    def _greet(self) -> None:
        """Says the time to the host that asks, and waits for its echo: that bounds the difference of the clocks."""
        said_s = time.time()
        write_atomically(self.talk.hello, json.dumps({"said_s": said_s}))
        for _ in range(int(LONGEST_S / _POLL_S)):
            if echo := read_json(self.talk.echo):
                self.clock = (said_s - echo["heard_s"], time.time() - echo["heard_s"])
                return
            time.sleep(_POLL_S)

    def _write(self, report: NodeReport) -> None:
        least_s, most_s = self.clock or (None, None)
        self.report = replace(report, clock_least_s=least_s, clock_most_s=most_s)
        self.report.write(self.talk.report)


def _environment(question: Question) -> dict[str, str]:
    """What the ranks of an attempt would find, as far as it matters here."""
    defaults = {"OMP_NUM_THREADS": "1"} | ({} if question.on_gpus else {"DS_ACCELERATOR": "cpu"})
    return {**defaults, **os.environ, **question.env, **({} if question.on_gpus else {"DS_ACCELERATOR": "cpu"})}


def _missing(paths: Sequence[str]) -> tuple[str, ...]:
    """Those that are not here, or not for this user: pathlib would raise an error."""
    return tuple(path for path in paths if not os.path.exists(path))  # noqa: PTH110


def _within(timeout_s: float, look: JobListing) -> Any:
    """What a look sees; a `Trouble` where it fails or hangs. A thread that hangs is left behind."""
    seen: list[Any] = []

    def watched() -> None:
        try:
            seen.append(look())
        except ChildFailed as exc:
            seen.append(Trouble(str(exc)))
        except Exception as exc:  # noqa: BLE001 - a look that fails must hide no other
            seen.append(Trouble(f"{type(exc).__name__}: {exc}"))

    thread = threading.Thread(target=watched, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return seen[0] if seen else Trouble(f"no answer within {timeout_s:.0f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
