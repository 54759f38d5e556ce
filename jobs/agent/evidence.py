"""Record how an attempt's processes ended on a node, with the proof, without a verdict."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, GetPydanticSchema, with_config
from typing_extensions import TypedDict

from dscampaign.jobs.shared.documents import Document, Number, Time, Whole
from dscampaign.jobs.shared.layout import AttemptPaths
from dscampaign.jobs.shared.spool_steps import TAIL_BYTES, tail
from dscampaign.jobs.shared.user_pattern import UserPattern

from .gpus import GpuFacts
from .node_facts import Machine

AGENT = "agent"  # in place of a log's name for a line of the agent itself, number 0: the folder took no outcome
TAIL_LINES = 40
LINE_LIMIT = 600
RECORD_LIMIT = 4000  # for a JSON record, which has its traceback in the same line
PIECE = 8192  # characters of a line that are read at once
BLOCK_LINES = 400
FIRST_SUSPECTS = 20
SUSPECT_LIMIT = 60
"""The first and the last suspects are kept: if a line repeats a thousand times, the cause of the end comes last."""
GATHER_S = 5.0  # for the logs of a node, in all: the outcome must be written before Slurm sends SIGKILL
PATTERNS_S = 3.0  # of processor time, for the user's own patterns on all of them

SUSPECTS = (
    *("error", "exception", "killed", "out of memory", "oom", "can't allocate", "bad_alloc", "nvrm", "xid", "ecc"),
    *("fallen off", "watchdog", "no space", "quota", "stale", "cannot", "not permitted", "check batch", "fail"),
    *("usage:", "no module", "not found", "timed out", "could not", "missing", "no such", "corrupt", "is lost"),
    *("mismatch", "invalid", "read-only", "not connected", "loss scale", "finite", "is nan", "diverg", "timeout"),
    *("stuck", "no progress", "abort", "fatal", "access fault", "stalled"),
)
"""Worth keeping from the middle of a log, in lower case: a superset of the rules of failure classes.

Plain text is ten times as fast as a pattern, and the logs of a long run are searched between SIGTERM and SIGKILL.
"""

EXIT_NOT_MINE: Final = 75  # how an agent ends whose attempt is another job's, or over
REFUSED: Final = "[campaign:not-trusted]"
"""Marks the line of an agent that refuses to run; it can leave no outcome in a folder that others can write to."""

NO_WORKDIR: Final = "no_workdir"  # the agent started no ranks: the folder in which the training starts was not there

_Numbered = tuple[int, str]  # a line and its number


@dataclass(frozen=True)
class LogLine:
    """A line of a log, with its place."""

    file: str
    number: Whole
    text: str


@with_config(ConfigDict(extra="allow"))
class _RankError(TypedDict):
    """The exception that ended a rank, as ``rank.py`` wrote it; undeclared keys are not checked."""

    type: str
    message: str
    ts: Time
    trace: NotRequired[list[str]]


RankError = Annotated[dict[str, Any], GetPydanticSchema(lambda _, handler: handler(_RankError))]


@dataclass(frozen=True)
class RankEnd(Document):
    """How a rank ended: its own record, with what the agent saw."""

    rank: Number
    exit: Number | None = None  # its exit code; None if it left no record of an end, as after a signal
    error: RankError | None = None  # the exception that ended it
    pid: Number | None = None
    gone_s: Time | None = None  # when the agent saw that its process was gone without a record of an end
    # step, phase: the newest step that it had worked on, and its last phase, if it reported any
    step: Whole | None = None
    phase: str = ""
    group: Number | None = None  # ranks in the largest group that it has formed, 0 for none; None if unknown
    software: dict[str, str] | None = None  # versions of the libraries that it had loaded at its end
    state: str = ""  # "running" or "ended" in its own record


@dataclass(frozen=True)
class NodeOutcome(Document):
    """A node's evidence, written once when its launcher has ended. Older files may lack fields with defaults."""

    generation: Number
    job_id: str
    node_rank: Number
    host: str
    launcher_exit: Number | None  # exit code; negative is the number of the signal that killed the launcher
    # why the agent itself ended it: "stop" (asked to checkpoint), "signal" (SIGTERM), "peer" (another node failed),
    # "teardown" (ranks died, the launcher lingered), "superseded", "rendezvous", NO_WORKDIR, or ""
    ended_by: str
    started_s: Time
    ended_s: Time
    start_step: Whole  # steps that were done when it began
    last_step: Whole | None  # newest step in the spool
    ranks: tuple[RankEnd, ...]
    lines: tuple[LogLine, ...] = ()
    oom_kills: Whole = 0  # how often the kernel killed a process of this job for memory while it ran
    target_step: Whole | None = None  # the target that the script itself counted and reported
    ending_s: Time | None = None  # when the agent began to end the processes: their later messages answer that
    gpus: GpuFacts | None = None
    # memory_peak_bytes, memory_peak_of: the attempt's peak of the node's memory: "cgroup" for its own control group,
    # which counts cached files too and reaches the limit in good health; "processes" for a sampled sum
    memory_peak_bytes: Whole | None = None
    memory_peak_of: str = ""
    memory_limit_bytes: Whole | None = None  # of the control group that it ran in, None for none
    machine: Machine | None = None
    # the highest step that may have been made, since a script may report every tenth only
    step_reached: Whole | None = None
    diverged_at: tuple[str, Whole] | None = None  # the loss that was not finite at the end, and the first step of that
    allocator: str = ""  # the setting of PyTorch's allocator in the environment, "" for none
    # hashes of the inherited variables that may change the speed, None if no rank was launched
    variables: dict[str, str] | None = None
    workdir: str = ""  # with NO_WORKDIR, the folder that was not there
    token: str = ""
    config_hash: str = ""


def rank_ends(
    paths: AttemptPaths, ranks: Iterable[int], gone_s: Mapping[int, float], kept: Mapping[int, RankEnd]
) -> tuple[RankEnd, ...]:
    """Return how each of ``ranks`` ended, by its own record; ranks in ``gone_s`` left none."""
    ends = (kept.get(rank) or RankEnd.read(paths.rank_record(rank)) or RankEnd(rank) for rank in ranks)
    return tuple(replace(end, gone_s=gone_s.get(end.rank) if end.exit is None else None) for end in ends)


def gather_lines(
    paths: AttemptPaths, ranks: Iterable[int], node_rank: int, user_patterns: Iterable[str] = ()
) -> tuple[LogLine, ...]:
    """Return the suspect lines and the tail of each log of this node, the ranks' logs first.

    Each log may take an equal share of the time that is left of ``GATHER_S``; then the rest is skipped up to its end.
    """
    texts, patterns, until_s = tuple(user_patterns), list[UserPattern](), time.monotonic() + GATHER_S
    for pattern in texts:
        with contextlib.suppress(re.error):  # the spec has checked them; another Python may see it otherwise
            patterns.append(UserPattern(pattern, PATTERNS_S / len(texts)))
    logs = [log for rank in ranks for log in sorted(paths.logs.glob(f"*_rank{rank}.log"))]
    logs.append(paths.launcher_log(node_rank))
    lines: list[LogLine] = []
    for left, log in zip(range(len(logs), 0, -1), logs, strict=True):
        now_s = time.monotonic()
        with contextlib.suppress(OSError):
            lines += pick(log.name, _lines(log, now_s + (until_s - now_s) / left), patterns)
    for slow in patterns:
        if slow.given_up:
            print(f"retry.rules: {slow.pattern} takes too long and was given up", file=sys.stderr, flush=True)
    return tuple(lines)


def pick(name: str, lines: Iterable[str], patterns: Sequence[UserPattern] = ()) -> list[LogLine]:
    """Return a log's suspects, before each the last sign of training, and its end."""

    def is_suspect(text: str) -> bool:
        lowered = text.lower()
        return any(word in lowered for word in SUSPECTS) or any(pattern.search(text) for pattern in patterns)

    numbered = enumerate(lines, 1)
    suspects, held, progress = list[_Numbered](), list[_Numbered](), list[_Numbered]()
    while block := list(islice(numbered, BLOCK_LINES)):
        held += block
        block, held = held[:-TAIL_LINES], held[-TAIL_LINES:]
        if is_suspect("\n".join(text[:LINE_LIMIT] for _, text in block)):  # most blocks hold none
            for line in block:
                if is_suspect(line[1][:LINE_LIMIT]):
                    suspects += [*progress, line]
                    progress = []
                elif _may_be_progress(line[1]):
                    progress = [line]
        else:
            progress = next(([line] for line in reversed(block) if _may_be_progress(line[1])), progress)
        del suspects[FIRST_SUSPECTS : FIRST_SUSPECTS - SUSPECT_LIMIT]
    went_on = progress if suspects else []
    limits = {True: RECORD_LIMIT, False: LINE_LIMIT}
    chosen = (*suspects, *went_on, *held)
    return [LogLine(name, number, text.rstrip()[: limits[text.startswith("{")]]) for number, text in chosen]


def _may_be_progress(text: str) -> bool:
    lowered = text[:LINE_LIMIT].lower()
    return "step" in lowered or "loss" in lowered


def _lines(log: Path, until_s: float) -> Iterator[str]:
    """Yield the beginning of each line of a log; from `until_s` on only of its end."""
    with log.open(errors="replace") as file:
        begins = True
        while piece := file.readline(PIECE):  # a line may have no end
            if begins:
                yield piece
            begins = piece.endswith("\n")
            if time.monotonic() >= until_s:
                at = os.lseek(file.fileno(), 0, os.SEEK_CUR)
                if os.fstat(file.fileno()).st_size - at > TAIL_BYTES:
                    break
        else:
            return
    yield from tail(log)[1:]  # the first is torn
