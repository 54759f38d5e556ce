"""What attempts count against, by the policies of their classes: for checks of what a run may do after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dscampaign.db.records import AttemptRow
from dscampaign.db.states import RunState
from dscampaign.orchestrator.failures.policy import Budget, FailureClass

FINAL = frozenset(kind for kind in FailureClass if kind.policy.run is RunState.FAILED)
"""Classes after which a run is not tried again."""

MUST_SAVE = frozenset(kind for kind in FailureClass if kind.policy.must_save)
"""Classes of which three without a new checkpoint hold the run."""


def progressed(row: AttemptRow) -> bool:
    """Whether the attempt made a step."""
    return (row.last_step or 0) > (row.start_step or 0)


def spent(rows: Sequence[AttemptRow]) -> Counter[Budget]:
    """How much of each budget these attempts of one run used, oldest first."""
    used: Counter[Budget] = Counter()
    for index, row in enumerate(rows):
        if budget := charged(rows[:index], row):
            used[budget] += 1
    return used


def charged(earlier: Sequence[AttemptRow], row: AttemptRow) -> Budget | None:
    """The budget that an attempt counts against after the earlier ones."""
    if row.failure_class is None:
        return None
    same = sum(other.failure_class == row.failure_class for other in earlier)
    return FailureClass(row.failure_class).policy.budget(same, progressed=progressed(row))
