"""One piece of evidence: a line, its origin, the exception that it shows, and whether that is an echo. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from dscampaign.jobs.agent.evidence import LogLine

from . import words
from .policy import FailureClass
from .raised import OF_FILES, OF_PROGRAM, Place, Raised, causes_of_trace, places, recorded, said
from .verdict import Verdict, headline

_CASCADE = re.compile(
    r"ncclRemoteError|ncclSystemError|remote process exited|NCCL (?:communicator|comm|operation|watchdog|timeout)"
    r"|detected by watchdog|other ranks|[Aa]borted by"
    r"|ProcessGroup|Dist(?:Backend|Network|Store)Error|Gloo|gloo/|\[.*gloo"
    r"|[Cc]onnection (?:closed|reset|refused|lost)|Connection\w*(?:Reset|Refused|Aborted)|Broken ?[Pp]ipe"
    r"|TCPStore|c10d|[Ww]atchdog|Socket Timeout|failed to recv, got 0 bytes|Application timeout caused pair closure"
    r"|killed by signal: Terminated|SignalException|^(?:builtins\.)?KeyboardInterrupt|Rendezvous\w*Error"
    r"|ChildFailedError|CalledProcessError: Command '\['(?:[^']*/)?(?:python[\d.]*|deepspeed|torchrun)'"
    r"|clients joined|srun: error: \S+: tasks? [\d,-]+: (?:Exited|Terminated|Killed)"
    r"|Horovod has been shut down|MPI_ABORT was invoked"
    r"|Timed out waiting \d+ms|monitoredBarrier|\bSIGTERM\b|signal 15\b|[Tt]ime limit|walltime|[Pp]reempted"
)
"""Messages of ranks after another rank has died, and of ranks that are being ended."""
_OWN_FAULT = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) error: |(?:Cuda|HIP) failure|(?:CUDA|HIP|XPU|NPU) out of memory"
    r"|Duplicate GPU detected|doesn't have NCCL built in|no GPUs found"
    r"|shared memory|ncclInvalid|invalid (?:tensor|argument|usage|device)|no socket interface found"
    r"|EADDRINUSE|[Aa]ddress already in use"
    r"|^(?:builtins\.)?(?:Type|Value|Attribute"
    r"|Name|Key|Import|ModuleNotFound|Syntax|NotImplemented|Index|UnboundLocal)Error"
)
"""Worded like a cascade, but the rank's own fault: its watchdog passes on a CUDA error of the same rank."""
_UNBUILT = re.compile(r"torch_extensions\S*: (?:cannot open shared object file|file too short)")
"""An error of ranks that wait for an extension which another could not build, or has not yet."""


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
        return bool(_UNBUILT.search(self.text)) or (is_cascade(self.text) and not _own(self.raised))

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
        return tuple(said(text) for text in error.get("causes") or causes_of_trace(error.get("trace") or ()))

    def verdict(self, kind: FailureClass, rule: str = "", reason: str = "", hint: str = "", **more: Any) -> Verdict:
        """Return a verdict that it proves, by default with its own text."""
        return Verdict(kind, reason or headline(self.text), hint, self.line, rule, **{"host": self.host, **more})


@lru_cache(maxsize=2048)
def is_cascade(text: str) -> bool:
    """Return whether the error is a consequence of another rank's death."""
    return bool(_CASCADE.search(text)) and not _OWN_FAULT.search(text)


def _own(raised: Raised) -> bool:
    """Return whether its class blames the program, though it names the means of communication."""
    if raised.is_a(*OF_FILES):
        return True
    return raised.is_a(*OF_PROGRAM) and not words.PASSING.search(words.QUOTED.sub("''", raised.message))
