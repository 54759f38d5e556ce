"""Whether an attempt came to its end: success, an orderly stop, and failures after the target step. Pure."""

from __future__ import annotations

import signal

from dscampaign.db.states import RunState
from dscampaign.jobs.agent.evidence import LogLine, RankEnd

from . import errnos
from .clues import Clue
from .evidence import Ended, death_signal
from .places import Place, places
from .policy import FailureClass
from .verdict import Sureness, Verdict

EXIT_STOPPED = 85
"""The exit code of a script that was asked to stop and has saved a checkpoint."""

_OUTCOME_PHASES = frozenset({"checkpoint", "eval"})
"""Work after the last step on which a run's results still depend."""
_OF_TEARDOWN = frozenset({Place.TEARDOWN, Place.TRACKER, Place.COLLECTIVE})
_OF_RESULTS = frozenset({Place.SAVING, Place.LOADING, Place.DATA})
_MACHINE_FAULTS = frozenset({errnos.Fault.STORAGE, errnos.Fault.MEMORY})
_OF_INTERPRETERS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""Signals of which an interpreter may die while it shuts down."""


def finished(ended: Ended) -> Verdict | None:
    """Return success or an orderly stop, which the outcome records of every node prove.

    Without them, a job that Slurm calls COMPLETED is done if the store has its last step.
    """
    if len(ended.outcomes) < ended.nodes or any(o.launcher_exit is None for o in ended.outcomes):
        reached = ended.target_step is not None and (ended.known_last_step or 0) >= ended.target_step
        if ended.job is None or ended.job.state != "COMPLETED" or not reached:
            return None
        reason = "every step was reported and Slurm calls its job completed; not every node's outcome was readable"
        return Verdict(FailureClass.COMPLETED, reason, rule="slurm-state", sure=Sureness.LIKELY)
    exits = {rank.exit for o in ended.outcomes for rank in o.ranks}
    clean = exits == {0} and all(o.launcher_exit == 0 for o in ended.outcomes)
    interrupted = any(o.ended_by == "signal" for o in ended.outcomes)
    alone = alone_in_words(ended.group, len(ended.ranks))
    if exits == {0} and ended.reached:  # the interpreters and the launcher may fail afterwards
        return Verdict(FailureClass.COMPLETED, alone)
    if clean and not ended.steps_decide and not ended.stop_asked and not (interrupted and ended.short):
        reason = (
            f"the script exited with 0 at step {ended.step or ended.reached_before:,} of {ended.target_step:,}"
            if ended.short
            else alone
        )
        return Verdict(FailureClass.COMPLETED_EARLY if ended.short else FailureClass.COMPLETED, reason)
    if _stopped(ended, exits):
        return Verdict(FailureClass.STOPPED, f"stopped after a checkpoint at step {ended.step}")
    return _torn_down(ended)


def alone_in_words(group: int | None, ranks: int) -> str:
    """Return a sentence about ranks that formed no group of all; "" if they did, or nobody knows."""
    if group is None or group >= ranks or ranks < 2:
        return ""
    formed = f"the largest had {group}" if group > 1 else "each may have trained alone"
    return f"its {ranks} ranks never formed a group of {ranks}: {formed}"


def diverged(verdict: Verdict, ended: Ended) -> Verdict | None:
    """Return the verdict on an end in good order whose loss was no longer a number, None if it was.

    A single step may be an overflow that fp16 skips: before the end, two show that more steps lead nowhere. An attempt
    without an outcome, or that had nothing left to do, is judged by the losses in the store.
    """
    over = verdict.kind.policy.run is RunState.COMPLETED
    before = ended.diverged_before if over and not (ended.progressed and ended.outcomes) else None
    name, since = next((o.diverged_at for o in ended.outcomes if o.diverged_at), before or ("", 0))
    goes_on = verdict.kind in (FailureClass.STOPPED, FailureClass.TIME_LIMIT) and since < ended.step
    if not name or not (over or goes_on):
        return None
    hint = "lower the learning rate, or warm up longer"
    until = max(since, ended.step)
    proof = LogLine("metrics.jsonl", 0, f"{name} is not finite from step {since:,} to step {until:,}")
    reason = f"{name} is not finite since step {since:,}{'; this attempt made no further step' if before else ''}"
    return Verdict(FailureClass.DIVERGED, reason, hint, proof, "reported-loss")


def _stopped(ended: Ended, exits: set[int | None]) -> bool:
    if EXIT_STOPPED in exits:
        return exits <= {0, EXIT_STOPPED, None} and not any(rank.error for o in ended.outcomes for rank in o.ranks)
    return exits == {0} and ended.stop_asked


def _torn_down(ended: Ended) -> Verdict | None:
    """All steps were made, and only the clean-up after them failed: a process group, a tracker, an interpreter."""
    ranks = ended.ranks
    if not ended.reached or not ranks or any(o.oom_kills for o in ended.outcomes):
        return None
    if len(ranks) > 1 and any(rank.exit != 0 and rank.group is not None and rank.group < len(ranks) for rank in ranks):
        return None  # a rank that met no other has made none of their steps
    errors = ended.errors
    left = any(rank.exit == 0 for rank in ranks)
    explained = left or errors or death_signal(ended) in _OF_INTERPRETERS
    if not explained or not all(_of_teardown(clue, left) for clue in errors) or any(map(_had_work, ranks)):
        return None
    reason = f"step {ended.step} of {ended.target_step} was made; only the clean-up failed"
    return Verdict(FailureClass.COMPLETED, reason, rule="teardown", sure=Sureness.LIKELY)


def _had_work(rank: RankEnd) -> bool:
    return rank.exit != 0 and rank.phase in _OUTCOME_PHASES


def _of_teardown(clue: Clue, left: bool) -> bool:
    """Whether it concerns the clean-up or an upload alone: by its place, or an echo if others left in good order."""
    places_of_error = places(clue.raised.frames)
    if not _OF_RESULTS.isdisjoint(places_of_error) or errnos.FAULTS.get(clue.raised.errno or 0) in _MACHINE_FAULTS:
        return False
    if clue.raised.is_a("NetworkError") or not _OF_TEARDOWN.isdisjoint(places_of_error[:3]):
        return True
    return clue.is_cascade and (left or not places_of_error)
