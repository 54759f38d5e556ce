"""Which lines of a log are evidence, and which errors are only consequences of another rank's death. Pure.

Logs are full of words that sound like failures: the configuration that a launcher prints, warnings, errors that a
script caught and went on from, what a destructor says while the interpreter shuts down. None of these may decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, islice, takewhile
from typing import Any

from dscampaign.jobs.agent.evidence import LogLine

from .raised import BREAK

CASCADE = re.compile(
    r"ncclRemoteError|ncclSystemError|remote process exited|NCCL (?:communicator|comm|operation|watchdog|timeout)"
    r"|detected by watchdog|other ranks|[Aa]borted by"
    r"|ProcessGroup|Dist(?:Backend|Network|Store)Error|Gloo|gloo/|\[.*gloo"
    r"|[Cc]onnection (?:closed|reset|refused|lost)|Connection\w*(?:Reset|Refused|Aborted)|Broken ?[Pp]ipe"
    r"|TCPStore|c10d|[Ww]atchdog|Socket Timeout|failed to recv, got 0 bytes|Application timeout caused pair closure"
    r"|killed by signal: Terminated|SignalException|^(?:builtins\.)?KeyboardInterrupt|Rendezvous\w*Error"
    r"|ChildFailedError"  # who only tells that a process failed
    r"|clients joined|srun: error: \S+: tasks? [\d,-]+: (?:Exited|Terminated|Killed)"
    r"|Horovod has been shut down|MPI_ABORT was invoked"
    r"|Timed out waiting \d+ms|monitoredBarrier|\bSIGTERM\b|signal 15\b|[Tt]ime limit|walltime|[Pp]reempted"
)
"""Messages of ranks after another one has died, and of ranks that are being ended."""

OWN_FAULT = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) error: |(?:Cuda|HIP) failure|(?:CUDA|HIP|XPU|NPU) out of memory"
    r"|Duplicate GPU detected|doesn't have NCCL built in|no GPUs found"
    r"|shared memory|ncclInvalid|invalid (?:tensor|argument|usage|device)|no socket interface found"
    r"|^(?:builtins\.)?(?:Type|Value|Attribute"
    r"|Name|Key|Import|ModuleNotFound|Syntax|NotImplemented|Index|UnboundLocal)Error"
)
"""Worded like a cascade, but the rank's own fault: its watchdog passes on a CUDA error of the same rank."""

_UNBUILT = re.compile(r"torch_extensions\S*: (?:cannot open shared object file|file too short)")
"""What the other ranks find where one could not build an extension, or has not yet."""
_QUOTED_PATH = re.compile(r"'[^'\n]*/[^'\n]*'|\"[^\"\n]*/[^\"\n]*\"")
"""A file's name says nothing of what happened."""
_INSET = re.compile(r"^(?:\s|[│|#>*+-]\s)")
"""Source lines, frames, printed configurations and tables: an error's own line begins at the margin."""
_NO_EVIDENCE = re.compile(
    r" cmd = |spawned with command|exits with return code"  # the launcher repeats our own command line
    r"|^\s*[\"'][^\"']+[\"']\s*:"  # a line of printed JSON
    r"|^\s*[\w.\[\]/-]+ \.{3,} "  # DeepSpeed's list of its configuration
    r"|Namespace\(\w+=|(?:Config|Arguments)\(\w+="  # arguments and dataclasses, printed
    r"|^(?!\S*Error)[^:]{0,40}[:=]? ?\{.*\w[\"']?\s*[:=]"  # a dictionary, printed
    r"|\w*Warning: "  # Python's warnings quote errors
    r"|\b(?:retry(?! count exceeded)|retrying|retries? (?:left|in|after)|fall(?:ing)? ?back"
    r"|continuing|skipp?(?:ed|ing)|ignor(?:ed|ing)"
    r"|recovered|recovering|handled|disabled|disabling)\b"  # whoever wrote that went on
)
_MILD = re.compile(
    r"(?:^|[\s\[|(:-])(?:INFO|DEBUG|WARN(?:ING)?|NOTICE|TRACE|[Ww]arning)(?=[\s\]|):-])"
    r"|(?:^|[\s\[:])[IW]\d{3,4} \d\d:\d\d:\d\d"  # glog
)
_MILD_REACH = 90
_NCCL_WARN = re.compile(r"NCCL WARN ")
_DECORATION = re.compile(
    r"^(?:\[(?!Errno|enforce)[^\]\n]{1,80}\]:? ?"  # [rank0]: [ERROR] [2026-01-01 00:00:00] [engine.py:12:step]
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S* (?:[-|] )?"
    r"|[EF]\d{3,4} \d\d:\d\d:\d\d\S* (?:\d+ )?\S+\] ?"  # glog
    r"|(?:\S{1,40} - )?(?:ERROR|CRITICAL|FATAL)\b[ :|-]++"
    r"(?:(?!(?:\w+\.)*\w*(?:Error|Exception)\b)[\w./]+(?::[\w<>]+:\d+ - |:\d+ | - |: ?| \| ))?"  # and the logger's
    r"|\S{0,40}<stderr>:"
    r"|(?!\S*Error: )[\w.-]{1,40}: (?=\[|Traceback|\w+(?:\.\w+)*Error)"  # srun --label, pdsh
    r"| *what\(\): *)"
)
_ABANDONED = re.compile(r"^Exception ignored in|^Exception in thread|^Error in atexit|^Error in sys\.excepthook")
_ERROR_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b")
_FATAL_HEAD = re.compile(
    r"^(?:(?:\w+\.)*\w*(?:Error|Exception|Exit|Value)\b|(?:[a-z_]\w*\.)+[A-Z]\w+(?:: |$)|(?:\S+: )?[Ee]rror: "
    r"|Error .{1,80} at line \d+ in file |\S*(?:python[\d.]*|launcher|sh): "
    r"|Flags parsing error: "
    r"|\S+ fatal *: |(?:Error: )?(?:No such option|Missing \w+|Got unexpected)"
    r"|Could not override|In '\S+': Could not find|Key '"
    r"|No module named )"
)
"""How a line begins with which a program ends for a mistake; prose, tables and advice begin otherwise."""
_ENDED_BY_SLURM = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT|srun: Job step aborted|srun: forcing job termination"
)
"""After this, a log says only what came of it."""
_ABANDONED_REACH = 40
"""Lines that the traceback of an abandoned exception may have."""

_SPEAKER = re.compile(r"^\[rank(\d+)\]: ")
"""What torch's hook puts before each line of an exception that nobody caught."""
_TRACEBACK = "Traceback (most recent call last)"
_NEXT = re.compile(rf"{re.escape(_TRACEBACK)}|{BREAK.pattern}")
_MESSAGE_LINES = 20
_GROUP = "Exception Group Traceback"
_MARGIN = re.compile(r"^(\[rank\d+\]: )?\s*(?:[|+] )+")
_GROUP_LINE = re.compile(r"^\W*(?:Base)?ExceptionGroup: |\+-+\+?-*(?: \d+ -+)?$")
_RECORD = re.compile(r'"(?:level|levelname|severity|lvl|message|msg|event|exc_info|exception|traceback|stack\w*)"\s*:')
_LEVELS = "level", "levelname", "severity", "lvl"
_GRAVE = "ERR", "CRIT", "FATAL", "EMERG", "ALERT", "PANIC", "EXC"
_OF_RANK = re.compile(r"rank(\d+)\.log$")

_PROGRESS = re.compile(r"\bloss\b\W{1,6}\d|\b(?:global_)?step\W{1,3}\d", re.IGNORECASE)
_NO_PROGRESS = re.compile(
    r"error|exception|fail|warn|^wandb:|save|resum|finite|diverg|stopp|abort"
    r"|(?<![a-z])nans?(?![a-z])(?![\w ]*[:=] *0\b)",  # and not how many there were
    re.IGNORECASE,
)


@lru_cache(maxsize=2048)
def is_cascade(text: str) -> bool:
    """Whether the error is a consequence of another rank's death."""
    return bool(CASCADE.search(_QUOTED_PATH.sub("", text))) and not OWN_FAULT.search(text)


@lru_cache(maxsize=2048)
def lacks_extension(text: str) -> bool:
    """Whether the error is that another rank has built no extension: an ImportError, yet no fault of its own."""
    return bool(_UNBUILT.search(text))


def unfolded(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Strip the margin of exception groups, and replace JSON records by their text; a traceback is one line."""
    grouped = {line.file for line in lines if _GROUP in line.text}
    return [
        LogLine(line.file, line.number, _of_json(_MARGIN.sub(r"\1", line.text) if line.file in grouped else line.text))
        for line in lines
        if line.file not in grouped or not _GROUP_LINE.search(line.text)
    ]


def _of_json(text: str) -> str:
    """The text of a JSON log record, "" if it is of no error; any other line as it is."""
    if not text.startswith("{") or not _RECORD.search(text):
        return text
    try:
        record = json.loads(text)
    except ValueError:
        return text
    level = next((str(record[key]).upper() for key in _LEVELS if key in record), "ERROR")
    if not level.startswith(_GRAVE) and not (level.isdigit() and int(level) >= 40):
        return text if _shows_progress(text) else ""
    said = list(_strings(record))
    if trace := next((value for _, value in said if _TRACEBACK in value), ""):
        return trace[trace.index(_TRACEBACK) :].rstrip()
    named = dict(said)
    if (kind := named.get("type", "")) and _ERROR_LINE.match(kind):
        return f"{kind}: {named.get('value', named.get('message', ''))}"
    return next((named[key] for key in ("error", "message", "msg", "event", "text") if named.get(key)), "")


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _strings(inner, str(name))


def evidence(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Which of a node's lines, each log's in their order, may decide; without their decoration (rank, time, level)."""
    for _, group in groupby(lines, key=lambda line: line.file):
        of_one_log = list(group)
        handled_until = max((line.number for line in of_one_log if _shows_progress(line.text)), default=0)
        for line in _without_abandoned(_before_the_end(of_one_log)):
            if line.text.startswith(_TRACEBACK) and "\n" in line.text:
                yield line
                continue
            text = bare(line.text)
            uncaught = line.number > handled_until or _SPEAKER.match(line.text)
            if uncaught and not _no_evidence(line.text) and not _INSET.match(text):
                yield LogLine(line.file, line.number, text)


@dataclass(frozen=True)
class LoggedException:
    """An exception as a log shows it.

    Attributes:
        text: its type and message, with the message's further lines where it is sure that they are its own.
        above: the traceback, that of the exceptions before it included.
        rank: who said it, where the log is of several.
        further: the numbers of the message's further lines.
    """

    text: str
    above: Sequence[str]
    rank: int | None = None
    further: frozenset[int] = frozenset()


def traceback_of(line: LogLine, log: Iterable[LogLine]) -> LoggedException:
    """What the log shows of the exception whose own line that is.

    torch's hook for uncaught exceptions begins each of their lines with the rank: thus lines of one rank are told from
    those of others in between, and further lines of its message from what came next.
    """
    of_file = [one for one in log if one.file == line.file]
    raw = next((one.text for one in of_file if one.number == line.number), "")
    speaker = _SPEAKER.match(raw)
    if speaker is None:
        return LoggedException(line.text, _traceback(bare(one.text) for one in of_file if one.number < line.number))
    mark = speaker[0]
    own = [(one.number, one.text[len(mark) :]) for one in of_file if one.text.startswith(mark)]
    above = _traceback(text for number, text in own if number < line.number)
    after = (one for one in own if one[0] > line.number)
    further = list(islice(takewhile(lambda one: not _NEXT.match(one[1]), after), _MESSAGE_LINES))
    text = "\n".join([line.text, *(text for _, text in further)])
    return LoggedException(text, above, int(speaker[1]), frozenset(number for number, _ in further))


def _traceback(above: Iterable[str]) -> Sequence[str]:
    lines = list(above)
    heads = [at for at, text in enumerate(lines) if text.startswith(_TRACEBACK)]
    if not heads:  # what is above is not kept
        return list(takewhile(lambda text: text.startswith("  "), reversed(lines)))[::-1]
    first = heads.pop()
    while heads and any(BREAK.match(text) for text in lines[max(0, first - 2) : first]):
        first = heads.pop()
    return lines[first:]


def rank_of_log(name: str) -> int | None:
    """The rank whose log the file is, None if it is of all."""
    found = _OF_RANK.search(name)
    return int(found[1]) if found else None


@lru_cache(maxsize=2048)
def ends_a_program(text: str) -> bool:
    """Whether the line begins as the last word of a program does that ends for a mistake."""
    return bool(_FATAL_HEAD.match(text))


@lru_cache(maxsize=4096)
def bare(text: str) -> str:
    """The line without what loggers and launchers put before it."""
    while found := _DECORATION.match(text):
        text = text[found.end() :]
    return text


def echoes_input(text: str) -> bool:
    """Whether the line repeats a command line or a configuration."""
    return bool(_NO_EVIDENCE.search(text))


@lru_cache(maxsize=4096)
def _shows_progress(text: str) -> bool:
    """Whether training continued here: errors before such a line in the same log were not fatal."""
    return bool(_PROGRESS.search(text)) and not _NO_PROGRESS.search(text)


@lru_cache(maxsize=4096)
def _no_evidence(text: str) -> bool:
    if _NCCL_WARN.search(text):
        return False
    return bool(_NO_EVIDENCE.search(text)) or bool(_MILD.search(text[:_MILD_REACH]))


@lru_cache(maxsize=4096)
def _ends_by_slurm(text: str) -> bool:
    return bool(_ENDED_BY_SLURM.search(text))


def _before_the_end(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    ends = (at for at, line in enumerate(lines, 1) if _ends_by_slurm(line.text))
    return lines[: next(ends, len(lines))]


def _without_abandoned(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    skip_until = 0
    for line in lines:
        text = bare(line.text)
        if _ABANDONED.search(text):
            skip_until = line.number + _ABANDONED_REACH
        elif line.number <= skip_until:
            if _ERROR_LINE.search(text):
                skip_until = 0
        else:
            yield line
