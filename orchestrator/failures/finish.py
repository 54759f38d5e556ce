"""Whether an attempt came to its end: success, an orderly stop, and what may fail after the target step. Pure."""

from __future__ import annotations

import signal

from ...jobs.agent.evidence import RankEnd
from . import errnos
from .evidence import Clue, Ended, death_signal
from .places import Place, places
from .policy import FailureClass
from .verdict import Sureness, Verdict

EXIT_STOPPED = 85
"""The exit code of a script that was asked to stop and has saved a checkpoint."""

_OUTCOME_PHASES = frozenset({"checkpoint", "eval"})
"""What a run's results still depend on after its last step."""
_OF_TEARDOWN = frozenset({Place.TEARDOWN, Place.TRACKER, Place.COLLECTIVE, Place.DOWNLOAD})
_OF_RESULTS = frozenset({Place.SAVING, Place.LOADING, Place.DATA})
_MACHINE_FAULTS = frozenset({errnos.Fault.STORAGE, errnos.Fault.MEMORY})
_OF_INTERPRETERS = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
"""What a process that is taken apart may die of."""


def finished(ended: Ended) -> Verdict | None:
    """Success and an orderly stop need the outcome records of every node: COMPLETED 0:0 alone proves nothing."""
    if len(ended.outcomes) < ended.nodes or any(o.launcher_exit is None for o in ended.outcomes):
        return None
    exits = {rank.exit for o in ended.outcomes for rank in o.ranks}
    clean = exits == {0} and all(o.launcher_exit == 0 for o in ended.outcomes)
    if exits == {0} and ended.reached:  # whatever became of the interpreters and the launcher afterwards
        return Verdict(FailureClass.COMPLETED, "")
    if clean and not ended.steps_decide and not ended.stop_asked:
        early = ended.target_step is not None and ended.step < ended.target_step
        reason = f"the script ended at step {ended.step} of {ended.target_step}" if early else ""
        return Verdict(FailureClass.COMPLETED, reason)
    if _stopped(ended, exits):
        return Verdict(FailureClass.STOPPED, f"stopped after a checkpoint at step {ended.step}")
    return _torn_down(ended)


def _stopped(ended: Ended, exits: set[int | None]) -> bool:
    """Whether the ranks exited because they were asked to.

    A script's own exit code for it is word enough, and makes the launcher end the ranks that are slower to leave.
    """
    if EXIT_STOPPED in exits:
        return exits <= {0, EXIT_STOPPED, None} and not any(rank.error for o in ended.outcomes for rank in o.ranks)
    return exits == {0} and ended.stop_asked


def _torn_down(ended: Ended) -> Verdict | None:
    """All steps were made, and only the clean-up after them failed: a process group, a tracker, an interpreter."""
    ranks = [rank for o in ended.outcomes for rank in o.ranks]
    if not ended.reached or not ranks or any(o.oom_kills for o in ended.outcomes):
        return None
    errors = ended.errors
    left = any(rank.exit == 0 for rank in ranks)
    explained = left or errors or death_signal(ended) in _OF_INTERPRETERS
    if not explained or not all(_of_teardown(clue, left) for clue in errors) or any(map(_had_work, ranks)):
        return None
    reason = f"step {ended.step} of {ended.target_step} was made; what failed after it was the clean-up"
    return Verdict(FailureClass.COMPLETED, reason, rule="teardown", sure=Sureness.LIKELY)


def _had_work(rank: RankEnd) -> bool:
    return rank.exit != 0 and rank.phase in _OUTCOME_PHASES


def _of_teardown(clue: Clue, left: bool) -> bool:
    """Whether it concerns the clean-up or an upload alone: by its place, or an echo where others left in good order."""
    where = places(clue.raised.frames)
    if not _OF_RESULTS.isdisjoint(where) or errnos.FAULTS.get(clue.raised.errno or 0) in _MACHINE_FAULTS:
        return False
    if clue.raised.is_a("NetworkError") or not _OF_TEARDOWN.isdisjoint(where[:3]):
        return True
    return clue.is_cascade and (left or not where)
