"""How a state looks: a sign and a colour beside its word, never instead of it."""

from __future__ import annotations

from typing import Final

from ....db.records import AttemptState, RunState
from .text import Cell, Page, Style

_LOOKS: Final[dict[str, tuple[str, Style]]] = {
    RunState.PENDING: ("·", Style.DIM),
    RunState.QUEUED: ("…", Style.BLUE),
    RunState.RUNNING: ("▶", Style.CYAN),
    RunState.COMPLETED: ("✓", Style.GREEN),
    RunState.FAILED: ("✗", Style.RED),
    RunState.HELD: ("!", Style.YELLOW),
    RunState.CANCELLED: ("−", Style.DIM),
    AttemptState.INTENT: ("·", Style.DIM),
}


def state_cell(state: RunState | AttemptState) -> Cell:
    """The state in a table."""
    sign, style = _LOOKS[state]
    return Cell(f"{sign} {state}", style)


def changed_name(name: str, changes: str | None) -> str:
    """The run's name, with a mark where it is not measured as its spec says."""
    return f"{name} *" if changes else name


def changed_line(name: str, changes: str) -> str:
    """What that mark stands for."""
    return f"* {name} was changed so that it fits into memory: {', '.join(changes.split())}"


def counts_line(page: Page, counts: dict[RunState, int]) -> str:
    """`12 completed, 8 running, 1 failed`, in the order of a run's life."""
    given = ((state, counts[state]) for state in RunState if counts.get(state))
    return ", ".join(page.paint(f"{number:,} {state}", _LOOKS[state][1]) for state, number in given)
