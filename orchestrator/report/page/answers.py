"""What to use for each workload, and what comes next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..compare.objectives import TIED, Answer
from ..compare.results import WorkloadResults
from .elements import Table

_HEADER: Final = ("for", "use", "figure", "ahead of", "by", "which is")


def next_best(found: Answer) -> str:
    """What comes next after what is recommended, and whether the repeats show it."""
    if found.shown == TIED:
        return f"{found.runner_up} is on a par{f' ({found.gain})' if found.gain else ''}."
    behind = f", behind by {found.gain}" if found.gain else ""
    return f"Next comes {found.runner_up}{behind} ({found.shown})."


def answer_table(workloads: Sequence[WorkloadResults]) -> Table:
    """A row a workload: what was chosen, its figure, and what comes next."""
    return Table(_HEADER, tuple(map(_row, workloads)))


def _row(one: WorkloadResults) -> tuple[str, ...]:
    found = one.recommendation.answer
    if found is None:
        undecided = one.recommendation.undecided
        return one.workload.name, "", "", "", "", "loss or speed must decide" if undecided else "nothing can be said"
    if len(one.comparisons) == 1:
        return one.workload.name, found.condition, found.figure, "–", "–", "the only one"
    return one.workload.name, found.condition, found.figure, found.runner_up, found.gain, found.shown
