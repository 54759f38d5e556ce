"""Which lines of a spool count as steps: decided by the file alone, however it is cut into stretches. Pure.

A script may count its steps anew with every epoch, or go back to a checkpoint. No line of a step that was passed before
is mixed into the row of the first: the first count is kept, and an event reports the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dscampaign.db.records import STEPS_BEYOND, STEPS_RESTARTED

_LEAST_TARGET: Final = 10


def highest_step(target: int | None) -> float:
    """Return the highest plausible step of a run with this target: higher numbers count something else than steps."""
    return float("inf") if target is None else 2 * max(target, _LEAST_TARGET)


@dataclass
class StepOrder:
    """The order of the lines so far.

    Attributes:
        target: steps that the run is to make, None if that is not known.
        newest: the highest step, -1 before the first.
        found: by kind of event, the place of the first line that does not count among the others.
    """

    target: int | None = None
    newest: int = -1
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    _repeated_until: int = -1
    _marks: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, row: Mapping[str, float]) -> bool:
        """Return whether a line counts.

        A line may add to an earlier step, as an evaluation does, with values that were not reported there and later. A
        single line that was ahead proves nothing.
        """
        step = int(row["step"])
        if self.target is not None and step > highest_step(self.target):
            self.found.setdefault(STEPS_BEYOND, {"step": step, "target": self.target})
            return False
        names = row.keys() - {"step", "ts"}
        if step <= self._repeated_until:
            return False
        if step < self.newest and (not names or any(self._mark(name)[1] >= step for name in names)):
            self.found.setdefault(STEPS_RESTARTED, {"step": step, "newest": self.newest})
            self._repeated_until = self.newest
            return False
        self.newest = max(self.newest, step)
        for name in names:
            highest, next_to_it = self._mark(name)
            if step > highest:
                self._marks[name] = step, highest
            elif next_to_it < step < highest:
                self._marks[name] = highest, step
        return True

    def _mark(self, name: str) -> tuple[int, int]:
        return self._marks.get(name, (-1, -1))
