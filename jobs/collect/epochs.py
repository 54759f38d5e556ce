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
    """Lines that name an epoch and a step. Whether steps begin again with an epoch is known from the second one on.

    Until then the steps of the first one are right in both cases. They wait all the same where the number of an epoch's
    steps is not said: if steps turn out to begin again, none is taken, for a run that seems to end with the loss of its
    first epoch is worse than one without losses. So do lines of an attempt that resumes in a later epoch.

    Attributes:
        example: a line that is not taken, once there is one.
    """

    def __init__(self) -> None:
        self.example = ""
        self._count = _Count.OPEN
        self._held: list[Reading] = []
        self._first, self._total, self._farthest = -1, 0, -1

    def take(self, read: Reading) -> list[Reading]:
        """What is decided now."""
        if read.epoch is None:
            return [read]
        if self._first < 0:
            self._first, self._total = read.epoch, read.total or 0
        if self._count is _Count.OPEN:
            self._look(read.epoch - self._first, read)
        if self._count is not _Count.OPEN:
            held, self._held = self._held, []
            return [one for one in (*held, read) if self._is_counted(one)]
        if read.epoch == self._first <= 1 and read.total:
            return [read]
        self._held = [*self._held, read][:MAX_HELD]
        return []

    def finish(self) -> list[Reading]:
        """What waits although nothing follows: right if it is the first epoch of all, and the only one."""
        if self._count is _Count.OPEN and self._held:
            only = self._first <= 1 and all(read.epoch == self._first for read in self._held)
            self._decide(_Count.ON if only else _Count.UNKNOWN)
        held, self._held = self._held, []
        return held

    def _look(self, epochs: int, read: Reading) -> None:
        """Decides, if it can; a step that is the last one of the first epoch may be said again as the next one begins.

        Args:
            epochs: since the first one that was seen.
            read: the new line.
        """
        if epochs <= 0:
            self._farthest = max(self._farthest, read.step)
        elif read.step > self._farthest:
            self._decide(_Count.ON)
        elif read.step < self._farthest or epochs > 1:
            self._decide(_Count.ANEW if self._total and self._first <= 1 else _Count.UNKNOWN)
            self.example = self.example or ("" if self._count is _Count.ANEW else read.text.strip())

    def _decide(self, count: _Count) -> None:
        self._count = count
        if count is _Count.UNKNOWN and self._held:
            self.example, self._held = self._held[0].text.strip(), []

    def _is_counted(self, read: Reading) -> bool:
        if self._count is _Count.ANEW and read.total == self._total:
            read.line["step"] += ((read.epoch or 0) - self._first) * self._total
            return True
        return self._count is _Count.ON
