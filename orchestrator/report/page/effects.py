"""What each axis does, as a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dscampaign.orchestrator.report.compare.results import WorkloadResults
from dscampaign.orchestrator.report.compare.sensitivity import (
    change_in_words,
    confounded,
    doubt,
    loss_effect,
    memory_effect,
    pair_names,
    sensitivities,
    speed_effect,
)

from .elements import Section, Table

_HEADER = ("change", "effect on speed", "on memory", "on loss", "pairs", "of", "which is")
_TEXT = (
    "Each row is over all pairs of conditions that differ in this alone: × is the geometric mean of their speeds, with "
    "its 95 % interval over repeats and, in parentheses, the range over pairs. Memory and loss are differences."
)


def effects(one: WorkloadResults, title: str) -> Iterator[Section]:
    """The effects of all axes within a workload; nothing if no two conditions differ in one axis alone."""
    changes = sensitivities(one.comparisons)
    if not changes:
        return
    rows = tuple(
        (
            change_in_words(change),
            speed_effect(change),
            memory_effect(change),
            loss_effect(change),
            str(len(change.pairs)),
            pair_names(change),
            doubt(change) or ("established" if speed_effect(change) else ""),
        )
        for change in changes
    )
    yield Section(title, (_TEXT, *confounded(one.comparisons, changes)), (Table(_HEADER, rows, "----r--"),))
