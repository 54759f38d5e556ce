"""Counts runs by state, in one way for status, list and report. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from dscampaign.db.states import RunState


class _Run(Protocol):
    @property
    def state(self) -> RunState: ...

    @property
    def early(self) -> bool: ...


@dataclass(frozen=True)
class RunCounts:
    """Runs by state; `early` of the completed ones did so before their target step."""

    states: Mapping[RunState, int]
    early: int = 0

    @classmethod
    def of(cls, runs: Iterable[_Run]) -> Self:
        """Count these runs."""
        known = list(runs)
        return cls(Counter(run.state for run in known), sum(run.early for run in known))

    @property
    def total(self) -> int:
        """All runs."""
        return sum(self.states.values())

    @property
    def completed(self) -> int:
        """Completed runs, early or not."""
        return self.states.get(RunState.COMPLETED, 0)

    @property
    def note(self) -> str:
        """The note behind the number of completed runs: ` (2 early)`."""
        return f" ({self.early:,} early)" if self.early else ""

    def document(self) -> dict[str, Any]:
        """Return the counts for `--json`: every state, also those without a run."""
        counts = {str(state): self.states.get(state, 0) for state in RunState}
        return {"counts": counts, "completed_early": self.early}
