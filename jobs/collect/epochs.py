"""Steps that a script counts anew in each epoch: they are counted on, or not taken."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from .lines import Reading

MAX_HELD: Final = 100_000


class _Count(Enum):
    OPEN = auto()
    ON = auto()
    ANEW = auto()
    UNKNOWN = auto()


class Epochs:
    """Lines with an epoch and a step. The second epoch shows whether steps begin again with each.

    Until then the steps of the first epoch are right in both cases. They wait all the same if the number of an epoch's
    steps is unknown: if steps turn out to begin again, none is taken, for a run that seems to end with the loss of its
    first epoch is worse than one without losses. So do lines of an attempt that resumes in a later epoch.

    Attributes:
        example: a line that is not taken, once there is one.
    """

    def __init__(self) -> None:
        self.example = ""
        self._count = _Count.OPEN
        self._held: list[Reading] = []
        self._first, self._total, self._farthest = -1, 0, -1

    def take(self, reading: Reading) -> list[Reading]:
        """Return the readings that are settled by now."""
        if reading.epoch is None:
            return [reading]
        if self._first < 0:
            self._first, self._total = reading.epoch, reading.total or 0
        if self._count is _Count.OPEN:
            self._look(reading.epoch - self._first, reading)
        if self._count is not _Count.OPEN:
            held, self._held = self._held, []
            return [one for one in (*held, reading) if self._is_counted(one)]
        if reading.epoch == self._first <= 1 and reading.total:
            return [reading]
        self._held = [*self._held, reading][:MAX_HELD]
        return []

    def finish(self) -> list[Reading]:
        """Return the readings that still wait: right if theirs is the first epoch of all, and the only one."""
        if self._count is _Count.OPEN and self._held:
            only = self._first <= 1 and all(reading.epoch == self._first for reading in self._held)
            self._decide(_Count.ON if only else _Count.UNKNOWN)
        held, self._held = self._held, []
        return held

    def _look(self, epochs: int, reading: Reading) -> None:
        """Decide if possible; the last step of the first epoch may be printed again as the next epoch begins."""
        if epochs <= 0:
            self._farthest = max(self._farthest, reading.step)
        elif reading.step > self._farthest:
            self._decide(_Count.ON)
        elif reading.step < self._farthest or epochs > 1:
            self._decide(_Count.ANEW if self._total and self._first <= 1 else _Count.UNKNOWN)
            self.example = self.example or ("" if self._count is _Count.ANEW else reading.text.strip())

    def _decide(self, count: _Count) -> None:
        self._count = count
        if count is _Count.UNKNOWN and self._held:
            self.example, self._held = self._held[0].text.strip(), []

    def _is_counted(self, reading: Reading) -> bool:
        if self._count is _Count.ANEW and reading.total == self._total:
            reading.line["step"] += ((reading.epoch or 0) - self._first) * self._total
            return True
        return self._count is _Count.ON
