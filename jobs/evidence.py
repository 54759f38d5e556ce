"""How an attempt's processes ended on one node, with the proof. Facts only: what they mean is decided elsewhere."""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .files import read_json, write_atomically
from .layout import AttemptPaths

TAIL_LINES = 40
HEAD_LINES = 100
TAIL_BYTES = 64 * 1024
LINE_LIMIT = 600
SUSPECT_LIMIT = 60

SUSPECTS = (
    *("error", "exception", "killed", "out of memory", "oom", "can't allocate", "bad_alloc", "nvrm", "xid", "ecc"),
    *("fallen off", "watchdog", "no space", "quota", "stale file", "cannot load", "not permitted", "check batch"),
    *("usage:", "no module", "not found"),
)
"""Worth keeping from the middle of a log, in lower case; a superset of what the rules of failure classes look for.

Plain words are ten times as fast as a pattern, and the logs of a long run are searched between SIGTERM and SIGKILL.
"""


@dataclass(frozen=True)
class LogLine:
    """A line of a log, with where it stands."""

    file: str
    number: int
    text: str


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        exit: its exit code; None if it left no record of an end, as after a signal.
        error: type, message, trace and time of the exception that ended it.
    """

    rank: int
    exit: int | None
    error: dict[str, Any] | None


@dataclass(frozen=True)
class NodeOutcome:
    """One node's evidence, written once when its launcher has ended.

    Attributes:
        launcher_exit: exit code; negative is the number of the signal that killed the launcher.
        ended_by: why the agent itself ended it: "stop" (asked to checkpoint), "signal" (SIGTERM), "peer" (another node
            failed), "teardown" (ranks died, the launcher lingered), "superseded", "rendezvous", or "".
        start_step: steps that were done when it began.
        last_step: newest step in the spool, None if nothing was reported.
        oom_kills: how often the kernel killed a process of this job for memory while it ran.
        target_step: the target that the script itself counted and reported, None if it did not.
    """

    generation: int
    job_id: str
    node_rank: int
    host: str
    launcher_exit: int | None
    ended_by: str
    started_s: float
    ended_s: float
    start_step: int
    last_step: int | None
    ranks: tuple[RankEnd, ...]
    lines: tuple[LogLine, ...] = field(default=())
    oom_kills: int = 0
    target_step: int | None = None

    def write(self, path: Path) -> None:
        """Writes the record, complete or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> NodeOutcome | None:
        """The record in ``path``, or None while there is none that this version can read."""
        raw = read_json(path)
        try:
            ranks = tuple(RankEnd(**r) for r in raw.pop("ranks")) if raw else ()
            return (
                cls(**{**raw, "ranks": ranks, "lines": tuple(LogLine(**r) for r in raw.pop("lines"))}) if raw else None
            )
        except (KeyError, TypeError):
            return None


def rank_ends(paths: AttemptPaths, ranks: Iterable[int]) -> tuple[RankEnd, ...]:
    """What each of ``ranks`` wrote down of its end."""
    return tuple(_rank_end(rank, read_json(paths.rank_record(rank)) or {}) for rank in ranks)


def gather_lines(paths: AttemptPaths, ranks: Iterable[int], node_rank: int) -> tuple[LogLine, ...]:
    """The suspect lines and the tail of each log of this node, the ranks' logs first."""
    logs = [log for rank in ranks for log in sorted(paths.logs.glob(f"*_rank{rank}.log"))]
    return tuple(line for log in [*logs, paths.launcher_log(node_rank)] for line in _worth_keeping(log))


def first_step(spool: Path, default: int) -> int:
    """The oldest step in the spool, or ``default`` if there is none."""
    with contextlib.suppress(OSError), spool.open(errors="replace") as file:
        return next((step for line in file if (step := _step(line)) is not None), default)
    return default


def last_step(spool: Path) -> int | None:
    """The newest step in the spool. Reads only its end: a spool may hold a million lines."""
    return next((step for line in reversed(_tail(spool)) if (step := _step(line)) is not None), None)


def target_step(spool: Path) -> int | None:
    """The target that a script counts before its first step: the event ``target`` near the spool's beginning."""
    with contextlib.suppress(OSError), spool.open(errors="replace") as file:
        found = (_target(line) for line in islice(file, HEAD_LINES))
        return next((steps for steps in found if steps is not None), None)
    return None


def oom_kill_count() -> int:
    """How often the kernel killed a process of this control group for memory; 0 where that cannot be read."""
    try:
        group = Path("/proc/self/cgroup").read_text().rsplit("::", 1)[1].strip()
        events = Path(f"/sys/fs/cgroup{group}/memory.events").read_text()
    except (OSError, IndexError):
        return 0
    found = re.search(r"^oom_kill (\d+)$", events, re.MULTILINE)
    return int(found[1]) if found else 0


def _rank_end(rank: int, record: dict[str, Any]) -> RankEnd:
    return RankEnd(rank, record.get("exit"), record.get("error"))


def _worth_keeping(log: Path) -> list[LogLine]:
    suspects: list[LogLine] = []
    tail: deque[tuple[int, str]] = deque()
    with contextlib.suppress(OSError), log.open(errors="replace") as file:
        for number, text in enumerate(file, 1):
            tail.append((number, text))
            if len(tail) > TAIL_LINES:
                number_then, before = tail.popleft()
                if len(suspects) < SUSPECT_LIMIT and _suspect(before):
                    suspects.append(_line(log, number_then, before))
    return [*suspects, *(_line(log, number, text) for number, text in tail)]


def _suspect(text: str) -> bool:
    lowered = text[:LINE_LIMIT].lower()
    return any(word in lowered for word in SUSPECTS)


def _line(log: Path, number: int, text: str) -> LogLine:
    return LogLine(log.name, number, text.rstrip()[:LINE_LIMIT])


def _step(line: str) -> int | None:
    try:
        step = json.loads(line).get("step")
    except (ValueError, AttributeError):
        return None  # torn, or not ours
    return step if isinstance(step, int) and step > 0 else None


def _target(line: str) -> int | None:
    try:
        event = json.loads(line)
        steps = event["steps"] if event["event"] == "target" else None
    except (ValueError, TypeError, KeyError):
        return None
    return steps if isinstance(steps, int) else None


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
