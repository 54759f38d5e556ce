"""States of runs and attempts, values of `desired`, and sets of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """The state of a run."""

    PENDING = "pending"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    HELD = "held"
    CANCELLED = "cancelled"
    PRUNED = "pruned"  # a trial of a search that others surpassed
    SCREENED = "screened"
    """Left out by an earlier version: its condition's screening run showed that it is not worth its time."""


class CauseCode(StrEnum):
    """Causes of a run's state that later decisions depend on."""

    MISSING_VARIABLES = "missing-variables"  # held: the reconciling process lacks variables of the submitting shell
    UNREADABLE = "unreadable"  # held: its files or rows cannot be read
    BUDGET = "budget"  # held: the campaign has used up its GPU-hours
    REFUSED = "refused"  # failed: sbatch refused its job
    NEVER_STARTS = "never-starts"  # queued: no waiting starts its job, only another request


@dataclass(frozen=True)
class Cause:
    """Why a run is in its state, for decisions; `reason` is the same for people. `names`: the missing variables."""

    code: CauseCode
    names: tuple[str, ...] = ()  # the missing variables


class Stage(StrEnum):
    """The part of a campaign that a run belongs to; without `search` and `then` there is a single part."""

    SCREENING = "screening"
    """A short run of each point before any ran in full, by an earlier version; SCREENED runs did not follow."""
    TRIAL = "trial"  # a trial of a search; the runs that confirm the best are full ones
    THEN = "then"  # a follow-up of a completed run
    FULL = "full"


CANCELLING: Final = "cancelling"  # shown in place of a run's state from the request to cancel it until it has ended
UNSETTLED_RUN: Final = frozenset({RunState.PENDING, RunState.QUEUED, RunState.RUNNING})  # something is left to do
SETTLED_RUN: Final = frozenset(RunState) - UNSETTLED_RUN  # nothing is left that this program would do by itself
ENDED_RUN: Final = frozenset(
    {RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.SCREENED, RunState.PRUNED}
)
"""There is nothing to cancel; a held run may still be."""

RETRYABLE_RUN: Final = frozenset({RunState.FAILED, RunState.HELD, RunState.CANCELLED, RunState.SCREENED})
"""States that `campaign retry` accepts."""

STARTED_RUN: Final = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.COMPLETED})
"""Its experiment may no longer change under the same name."""

DECIDED_RUN: Final = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.HELD})
"""How it ended stays so when the spec names it again."""


def shown_state(state: RunState, desired: str) -> str:
    """Return a run's state, or CANCELLING from the request to cancel it until it has ended."""
    return CANCELLING if desired not in WANTED and state in UNSETTLED_RUN else state


class AttemptState(StrEnum):
    """The state of an attempt; an `intent` may or may not have reached Slurm."""

    INTENT = "intent"
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL_ATTEMPT: Final = frozenset({AttemptState.COMPLETED, AttemptState.FAILED, AttemptState.CANCELLED})
"""The states that an attempt never leaves."""

ACTIVE_ATTEMPT: Final = frozenset(AttemptState) - TERMINAL_ATTEMPT  # it may have a job
REMOVED: Final = "removed"  # a campaign's `desired` once `campaign rm` has begun
ABSENT: Final = "absent"  # a run's `desired` when the spec no longer names it
WANTED_YET: Final = "absent-run"  # the same, once its user has retried it all the same
WANTED: Final = frozenset({"run", WANTED_YET})  # values of a run's `desired` that bring it to its end
UNNAMED: Final = frozenset({ABSENT, WANTED_YET})
"""Values for a run that is not in the spec, until a spec names it again."""
