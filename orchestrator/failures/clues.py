"""Pieces of evidence: a line, its origin, the exception that it shows; and the lines of logs that may decide. Pure.

Logs are full of texts that sound like failures: the configuration that a launcher prints, warnings, errors that a
script caught and went on from, the complaints of a destructor while the interpreter shuts down. None of these may
decide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, islice, takewhile
from typing import Any

from dscampaign.jobs.agent.evidence import LogLine

from .policy import FailureClass
from .raised import BREAK, Place, Raised, causes_of_trace, last_exception, places, recorded, said
from .verdict import Verdict, headline

_CASCADE = re.compile(
    r"nccl(?:Remote|System)Error|remote process exited|NCCL (?:comm\w*|operation|timeout)|other ranks|[Aa]borted by"
    r"|ProcessGroup|Dist(?:Backend|Network|Store)Error|Gloo|gloo/|\[.*gloo"
    r"|[Cc]onnection (?:closed|reset|refused|lost)|Connection\w*(?:Reset|Refused|Aborted)|Broken ?[Pp]ipe"
    r"|TCPStore|c10d|[Ww]atchdog|Socket Timeout|failed to recv, got 0 bytes|Application timeout caused pair closure"
    r"|killed by signal: Terminated|SignalException|^(?:builtins\.)?KeyboardInterrupt|Rendezvous\w*Error"
    r"|ChildFailedError|CalledProcessError: Command '\['(?:[^']*/)?(?:python[\d.]*|deepspeed|torchrun)'"
    r"|clients joined|srun: error: \S+: tasks? [\d,-]+: (?:Exited|Terminated|Killed)"
    r"|Horovod has been shut down|MPI_ABORT was invoked"
    r"|Timed out waiting \d+ms|monitoredBarrier|\bSIGTERM|signal 15\b|[Tt]ime limit|walltime|[Pp]reempted"
)
"""Messages of ranks after another rank has died, and of ranks that are being ended."""
_OWN_FAULT = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) (?:error: |out of memory)|(?:Cuda|HIP) failure"
    r"|Duplicate GPU detected|doesn't have NCCL built in|no GPUs found"
    r"|shared memory|ncclInvalid|invalid (?:tensor|argument|usage|device)|no socket interface found"
    r"|EADDRINUSE|[Aa]ddress already in use"
    r"|^(?:builtins\.)?(?:Type|Value|Attribute|Name|Key|Import|ModuleNotFound|Syntax|NotImplemented|Index|UnboundLocal"
    r"|FileNotFound)Error"
)
"""Worded like a cascade, but the rank's own fault: its watchdog passes on a CUDA error of the same rank."""


@dataclass(frozen=True)
class Clue:
    """A piece of evidence; without a node or a rank if it is of the job.

    Attributes:
        error: The record of a rank's exception, None for any other evidence.
    """

    line: LogLine
    host: str = ""
    rank: int | None = None
    ts: float | None = None
    error: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """Its text."""
        return self.line.text

    @cached_property
    def raised(self) -> Raised:
        """The exception that it shows."""
        return recorded(self.error) if self.error else said(self.text)

    @cached_property
    def is_cascade(self) -> bool:
        """Whether it shows a consequence of another rank's death."""
        return is_cascade(self.text)

    @cached_property
    def is_garbled(self) -> bool:
        """Whether it is half a message of another process, as a rank or the parent of a worker reads it."""
        if not self.raised.type.endswith(("UnpicklingError", "EOFError")) or self.error is None:
            return False
        frames = self.raised.frames
        return Place.COLLECTIVE in places(frames)[:2] or any(frame.function == "spawn_main" for frame in frames)

    @cached_property
    def causes(self) -> tuple[Raised, ...]:
        """The exceptions in place of which it was raised, or that it holds, the first first."""
        error = self.error or {}
        if isinstance(chain := error.get("chain"), list) and chain:
            return tuple(recorded(cause) for cause in chain if isinstance(cause, Mapping))
        return tuple(said(text) for text in causes_of_trace(error.get("trace") or ()))

    def verdict(self, kind: FailureClass, rule: str = "", reason: str = "", hint: str = "", **more: Any) -> Verdict:
        """Return a verdict that it proves, by default with its own text."""
        return Verdict(kind, reason or headline(self.text), hint, self.line, rule, **{"host": self.host, **more})


@lru_cache(maxsize=2048)
def is_cascade(text: str) -> bool:
    """Return whether the error is a consequence of another rank's death."""
    return bool(_CASCADE.search(text)) and not _OWN_FAULT.search(text)


_INSET = re.compile(r"^(?:\s|[│|#>*+-]\s)")
"""Source lines, frames, printed configurations and tables: an error's own line begins at the margin."""
_NO_EVIDENCE = re.compile(
    r" cmd = |spawned with command|exits with return code"  # the launcher repeats our own command line
    r"|^\s*[\"'][^\"']+[\"']\s*:"  # a line of printed JSON
    r"|^\s*[\w.\[\]/-]+ \.{3,} "  # DeepSpeed's list of its configuration
    r"|Namespace\(\w+=|(?:Config|Arguments)\(\w+="  # arguments and dataclasses, printed
    r"|^(?!\S*Error)[^:]{0,40}[:=]? ?\{.*\w[\"']?\s*[:=]"  # a dictionary, printed
    r"|\w*Warning: "  # Python's warnings quote errors
    r"|\b(?:retry(?! count exceeded)|retrying|retries? (?:left|in|after)|fall(?:ing)? ?back|continuing"
    r"|(?:skipp?|ignor|recover|handl|disabl)(?:ed|ing))\b"  # whoever wrote that went on
)
_MILD = re.compile(
    r"(?:^|[\s\[|(:-])(?:INFO|DEBUG|WARN(?:ING)?|NOTICE|TRACE|[Ww]arning)(?=[\s\]|):-])"
    r"|(?:^|[\s\[:])[IW]\d{3,4} \d\d:\d\d:\d\d"  # glog
)
_MILD_REACH = 90
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
    r"|Flags parsing error: |\S+ fatal *: |(?:Error: )?(?:No such option|Missing \w+|Got unexpected)"
    r"|Could not override|In '\S+': Could not find|Key '"
    r"|No module named )"
)
"""How a line begins with which a program ends for a mistake; prose, tables and advice begin otherwise."""
_ABANDONED_REACH = 40
"""Lines that the traceback of an abandoned exception may have."""

_SPEAKER = re.compile(r"^\[rank(\d+)\]: ")
"""The mark of torch's hook before each line of an exception that nobody caught."""
_TRACEBACK = "Traceback (most recent call last)"
_NEXT = re.compile(rf"{re.escape(_TRACEBACK)}|{BREAK.pattern}")
_MESSAGE_LINES = 20
_GROUP = "Exception Group Traceback"
_MARGIN = re.compile(r"^(\[rank\d+\]: )?\s*(?:[|+] )+")
_GROUP_LINE = re.compile(r"^\W*(?:Base)?ExceptionGroup: |\+-+\+?-*(?: \d+ -+)?$")
_RECORD = re.compile(r'"(?:level|levelname|severity|lvl|message|msg|event|exception|traceback)"\s*:')
_LEVELS = "level", "levelname", "severity", "lvl"
_GRAVE = "ERR", "CRIT", "FATAL", "EMERG", "ALERT", "PANIC", "EXC"

_PROGRESS = re.compile(r"\bloss\b\W{1,6}\d|\b(?:global_)?step\W{1,3}\d", re.IGNORECASE)
_NO_PROGRESS = re.compile(
    r"error|exception|fail|warn|^wandb:|save|resum|finite|diverg|stopp|abort"
    r"|(?<![a-z])nans?(?![a-z])(?![\w ]*[:=] *0\b)",  # and not how many there were
    re.IGNORECASE,
)


def clues(lines: Sequence[LogLine], host: str = "") -> Iterator[Clue]:
    """Return the lines that may decide, last lines of programs with the exception that they end."""
    for file, group in groupby(lines, key=lambda line: line.file):
        rank = re.search(r"rank(\d+)\.log$", file)
        yield from _clues_of_file(_unfolded(list(group)), int(rank[1]) if rank else None, host)


def _clues_of_file(lines: Sequence[LogLine], rank: int | None, host: str) -> Iterator[Clue]:
    shown: set[str | int] = set()
    for line in evidence(lines):
        speaker: int | None = None
        above: Sequence[str] = ()
        text = line.text
        if "\n" in text:  # a traceback within a JSON record
            above, text = last_exception(text)
        elif line.number in shown or line.text in shown:
            continue
        elif ends_a_program(text):
            text, above, numbers, speaker = _traceback_of(line, lines)
            shown |= numbers
        else:
            shown.add(text)
            yield Clue(line, host, rank)
            continue
        head = said(text)
        error = {"type": head.type, "message": head.message, "trace": above}
        last = LogLine(line.file, line.number, text)
        yield Clue(last, host, rank if speaker is None else speaker, error=error)


def evidence(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Return the lines of a log that may decide, without their decoration (rank, time, level)."""
    lines = list(lines)
    handled_until = max((line.number for line in lines if _shows_progress(line.text)), default=0)
    for line in _without_abandoned(lines):
        if line.text.startswith(_TRACEBACK) and "\n" in line.text:
            yield line
            continue
        text = bare(line.text)
        uncaught = line.number > handled_until or _SPEAKER.match(line.text)
        if uncaught and not _no_evidence(line.text) and not _INSET.match(text):
            yield LogLine(line.file, line.number, text)


def _traceback_of(line: LogLine, log: Sequence[LogLine]) -> tuple[str, Sequence[str], set[int], int | None]:
    # torch's hook for uncaught exceptions begins each of their lines with the rank: this separates the lines of a rank
    # from those of others in between, and further lines of its message from the following output.
    raw = next((other.text for other in log if other.number == line.number), "")
    speaker = _SPEAKER.match(raw)
    if speaker is None:
        return line.text, _traceback(bare(other.text) for other in log if other.number < line.number), set(), None
    mark = speaker[0]
    own = [(other.number, other.text[len(mark) :]) for other in log if other.text.startswith(mark)]
    after = ((number, text) for number, text in own if number > line.number)
    further = dict(islice(takewhile(lambda pair: not _NEXT.match(pair[1]), after), _MESSAGE_LINES))
    above = _traceback(text for number, text in own if number < line.number)
    return "\n".join([line.text, *further.values()]), above, set(further), int(speaker[1])


def _traceback(above: Iterable[str]) -> Sequence[str]:
    lines = list(above)
    heads = [at for at, text in enumerate(lines) if text.startswith(_TRACEBACK)]
    if not heads:  # the lines above are not kept
        return list(takewhile(lambda text: text.startswith("  "), reversed(lines)))[::-1]
    first = heads.pop()
    while heads and any(BREAK.match(text) for text in lines[max(0, first - 2) : first]):
        first = heads.pop()
    return lines[first:]


@lru_cache(maxsize=2048)
def ends_a_program(text: str) -> bool:
    """Return whether the line begins like the last line of a program that ends for a mistake."""
    return bool(_FATAL_HEAD.match(text))


@lru_cache(maxsize=4096)
def bare(text: str) -> str:
    """Return the line without the decoration of loggers and launchers."""
    while match := _DECORATION.match(text):
        text = text[match.end() :]
    return text


def echoes_input(text: str) -> bool:
    """Return whether the line repeats a command line or a configuration."""
    return bool(_NO_EVIDENCE.search(text))


@lru_cache(maxsize=4096)
def _shows_progress(text: str) -> bool:
    """Return whether training continued here: errors before this line in the same log were not fatal."""
    return bool(_PROGRESS.search(text)) and not _NO_PROGRESS.search(text)


@lru_cache(maxsize=4096)
def _no_evidence(text: str) -> bool:
    if "NCCL WARN " in text:
        return False
    return echoes_input(text) or bool(_MILD.search(text[:_MILD_REACH]))


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


def _unfolded(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Strip the margin of exception groups, and replace JSON records by their text; a traceback is one line."""
    if any(_GROUP in line.text for line in lines):
        kept = (line for line in lines if not _GROUP_LINE.search(line.text))
        lines = [LogLine(line.file, line.number, _MARGIN.sub(r"\1", line.text)) for line in kept]
    return [LogLine(line.file, line.number, _of_json(line.text)) for line in lines]


def _of_json(text: str) -> str:
    """Return the text of a JSON log record, "" if it is of no error; any other line as it is."""
    if not text.startswith("{") or not _RECORD.search(text):
        return text
    try:
        record = json.loads(text)
    except ValueError:
        return text
    level = next((str(record[key]).upper() for key in _LEVELS if key in record), "ERROR")
    if not level.startswith(_GRAVE) and not (level.isdigit() and int(level) >= 40):
        return text if _shows_progress(text) else ""
    fields = dict(_strings(record))
    if trace := next((value for value in fields.values() if _TRACEBACK in value), ""):
        return trace[trace.index(_TRACEBACK) :].rstrip()
    if _ERROR_LINE.match(fields.get("type", "")):
        return f"{fields['type']}: {fields.get('value', fields.get('message', ''))}"
    return next((fields[key] for key in ("error", "message", "msg", "event", "text") if fields.get(key)), "")


def _strings(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _strings(inner)
        elif isinstance(inner, str):
            yield name, inner
