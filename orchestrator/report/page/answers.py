"""What to use for each workload, as one table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..compare.results import WorkloadResults
from .elements import Section, Table

_HEADER: Final = ("for", "use", "figure", "ahead of", "by", "which is")


def answers(workloads: Sequence[WorkloadResults]) -> Iterator[Section]:
    """Of several workloads what to use for each; nothing of one alone, whose recommendation says it."""
    if len(workloads) > 1:
        text = "What a speed or a loss of one workload is beside that of another says nothing: each has its own answer."
        yield Section("What to use for which", (text,), (answer_table(workloads),))


def answer_table(workloads: Sequence[WorkloadResults]) -> Table:
    """A row a workload: what was chosen, its figure, and what comes next."""
    return Table(_HEADER, tuple(map(_row, workloads)))


def _row(one: WorkloadResults) -> tuple[str, ...]:
    found = one.recommendation.answer
    if found is None:
        undecided = one.recommendation.undecided
        return one.workload.name, "", "", "", "", "loss or speed must decide" if undecided else "nothing can be said"
    return one.workload.name, found.condition, found.figure, found.runner_up, found.gain, found.shown
