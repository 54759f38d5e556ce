"""The look of a state: a sign and a colour beside its name, never instead of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dscampaign.db.records import COMPLETED_EARLY, ENDING, AttemptRow, RunStatus
from dscampaign.db.states import CANCELLING, AttemptState, RunState
from dscampaign.orchestrator.campaign.status import CampaignStatus
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import clean, duration, words

from .text import Cell, Page, Style

_LOOKS: Final[dict[str, tuple[str, Style]]] = {
    RunState.PENDING: ("·", Style.DIM),
    RunState.QUEUED: ("…", Style.BLUE),
    RunState.RUNNING: ("▶", Style.CYAN),
    CANCELLING: ("−", Style.YELLOW),
    RunState.COMPLETED: ("✓", Style.GREEN),
    RunState.FAILED: ("✗", Style.RED),
    RunState.HELD: ("!", Style.YELLOW),
    RunState.CANCELLED: ("−", Style.DIM),
    RunState.SCREENED: ("−", Style.DIM),
    AttemptState.INTENT: ("·", Style.DIM),
    FailureClass.STOPPED: ("−", Style.DIM),
}


_SUBMITTED: Final = "being submitted"
"""An `intent`: sbatch has not confirmed it."""

TRAINING: Final = "training"
_PHASES: Final = {
    "start": "starting",
    "compile": "compiling",
    "train": TRAINING,
    "steps": TRAINING,
    "eval": "evaluating",
    "checkpoint": "saving",
    ENDING: "ending",
}
"""The phases of `jobs/report.py` as a user reads them; a script's own phases are shown as they are."""


def state_cell(state: str, *, early: bool = False) -> Cell:
    """The state in a table; `early`: completed before its target step."""
    sign, style = _LOOKS[state]
    word = _SUBMITTED if state == AttemptState.INTENT else state
    return Cell(f"{sign} {word} early", Style.YELLOW) if early else Cell(f"{sign} {word}", style)


def attempt_cell(row: AttemptRow) -> Cell:
    """The state of an attempt; an orderly stop is no failure."""
    stopped = row.failure_class == FailureClass.STOPPED
    return state_cell(FailureClass.STOPPED if stopped else row.state, early=row.failure_class == COMPLETED_EARLY)


def doing(run: RunStatus, status: CampaignStatus) -> str:
    """`evaluating for 1 min 35 s`, `training`: the present phase of a run; "" if no pass has looked."""
    if run.state is not RunState.RUNNING or not run.phase or not status.seen_now:
        return ""
    word = _PHASES.get(run.phase, words(clean(run.phase)))
    if word == TRAINING or run.phase_since_s is None:
        return word
    return f"{word} for {duration(status.now_s - run.phase_since_s)}"


def counts_line(page: Page, counts: Mapping[RunState, int] | Mapping[str, int], early: int = 0) -> str:
    """`12 completed (2 early), 8 running, 1 failed`, in the order of a run's life."""
    numbers = {str(state): number for state, number in counts.items() if number}
    given = ((state, numbers[state]) for state in map(str, _LOOKS) if state in numbers)
    more = {str(RunState.COMPLETED): page.paint(f" ({early:,} early)", Style.YELLOW)} if early else {}
    return ", ".join(
        page.paint(f"{number:,} {state}", _LOOKS[state][1]) + more.get(state, "") for state, number in given
    )
