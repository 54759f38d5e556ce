r"""Search a regular expression of the user's own with a time limit: `(\w+\s?)+:` takes years on one line.

Python's engine checks for signals while it searches, so a timer ends it.
"""

from __future__ import annotations

import re
import signal
import time
from types import FrameType
from typing import Final, NoReturn

SEARCH_S: Final = 0.1  # of processor time, for all lines of an attempt: most patterns need less than a thousandth of it
AGAIN_S: Final = 0.01  # between two signals, in case an exception is swallowed, as in a destructor


class UserPattern:
    """A pattern with a limited search time in all; then it is given up, and matches nothing.

    Only the main thread may search. Raises re.error: it is no regular expression.
    """

    def __init__(self, pattern: str, limit_s: float = SEARCH_S) -> None:
        self.pattern, self.given_up = pattern, False
        self._compiled, self._left_s = re.compile(pattern, re.MULTILINE), limit_s

    def search(self, text: str) -> re.Match[str] | None:
        """Return its match in the text; None once it is given up."""
        if self.given_up:
            return None
        began_s, before = time.thread_time(), signal.signal(signal.SIGVTALRM, _stop)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, self._left_s, AGAIN_S)
            try:
                return self._compiled.search(text)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except _TimeIsUpError:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self.given_up = True
            return None
        finally:
            signal.signal(signal.SIGVTALRM, before)
            self._left_s -= time.thread_time() - began_s
            self.given_up |= self._left_s <= 0


class _TimeIsUpError(Exception):
    pass


def _stop(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise _TimeIsUpError
