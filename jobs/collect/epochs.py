"""Steps that a script counts anew in each epoch: they are counted on, or not taken."""

from __future__ import annotations

from typing import Final

from .formats import Reading

MAX_HELD: Final = 100_000


class Epochs:
    """Lines with an epoch and a step. The second epoch shows whether steps begin again with each.

    Until then the steps of the first epoch are right in both cases. They wait all the same if the number of an epoch's
    steps is unknown: if steps turn out to begin again, none is taken, for a run that seems to end with the loss of its
    first epoch is worse than one without losses. So do lines of an attempt that resumes in a later epoch.

    Attributes:
        refused: an example of the lines that are not taken, "" if all are.
    """

    def __init__(self) -> None:
        self.refused = ""
        self._anew: bool | None = None
        self._held: list[Reading] = []
        self._first, self._total, self._example, self._farthest = -1, 0, "", -1

    def take(self, reading: Reading) -> list[Reading]:
        """Return the readings that are settled by now."""
        if reading.epoch is None:
            return [reading]
        if self._first < 0:
            self._first, self._total, self._example = reading.epoch, reading.total, reading.text.strip()
        if reading.counts and self._first <= 1:
            self._anew = True
        if self._anew is None:
            self._decide(reading.epoch - self._first, reading.step)
        if self._anew is None and not self.refused:
            if reading.epoch == self._first <= 1 and reading.total:
                return [reading]
            self._held = [*self._held, reading][:MAX_HELD]
            return []
        held, self._held = self._held, []
        return [waiting for waiting in (*held, reading) if self._is_counted(waiting)]

    def finish(self) -> list[Reading]:
        """Return the readings that still wait: right if theirs is the first epoch of all, and the only one."""
        held, self._held = self._held, []
        if not held or (self._first <= 1 and all(reading.epoch == self._first for reading in held)):
            return held
        self.refused = self._example
        return []

    def _decide(self, epochs: int, step: int) -> None:
        """Decide if possible; the last step of the first epoch may be printed again as the next epoch begins."""
        if epochs <= 0:
            self._farthest = max(self._farthest, step)
        elif step > self._farthest:
            self._anew = False
        elif step < self._farthest or epochs > 1:
            self._anew = True
            if not (self._total and self._first <= 1):
                self.refused = self._example

    def _is_counted(self, reading: Reading) -> bool:
        if not self._anew:
            return True
        reading.line["step"] += ((reading.epoch or 0) - self._first) * self._total
        return reading.total == self._total and not self.refused
