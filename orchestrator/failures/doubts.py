"""What would confirm a verdict that is not sure. Pure."""

from __future__ import annotations

import signal
from dataclasses import replace

from .evidence import Ended, death_signal, silent_ranks
from .policy import FailureClass
from .verdict import Sureness, Verdict

_GUESSES = frozenset({FailureClass.GPU_FAULT})
"""Classes that are a guess by definition: the next attempt decides."""


def doubted(verdict: Verdict, ended: Ended) -> Verdict:
    """Return the verdict; if it is not sure, with the evidence that would decide."""
    if verdict.kind in _GUESSES or (verdict.kind is FailureClass.CRASH and not verdict.rule):
        verdict = replace(verdict, sure=Sureness.UNSURE)
    if verdict.sure is not Sureness.UNSURE or verdict.would_decide:
        return verdict
    return replace(verdict, would_decide=_what_decides(verdict, ended))


def _what_decides(verdict: Verdict, ended: Ended) -> str:
    if verdict.kind is FailureClass.GPU_FAULT:
        return "an attempt on another node: if it ends in the same way, the script's kernels are at fault"
    if verdict.place:
        return "another attempt: the same error at the same place is a mistake, and is not tried a third time"
    if ended.roots:
        return "another attempt: whether the error recurs"
    return _what_to_look_at(verdict, ended)


def _what_to_look_at(verdict: Verdict, ended: Ended) -> str:
    if not ended.outcomes or len(ended.outcomes) < ended.nodes:
        return "the logs of slurmd and of the kernel on the nodes that left no record"
    if silent_ranks(ended) and death_signal(ended) == signal.SIGKILL:
        return f"the kernel's log on {verdict.host or 'the node'}: whether the kernel killed it for want of memory"
    if silent_ranks(ended):
        return "PYTHONFAULTHANDLER=1 in `env`: the stack at the moment of its death goes to the log"
    return "its log: the script gave no reason that its rank could record"
