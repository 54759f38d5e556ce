"""Being told to end, by whomever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A SIGTERM, as from Slurm, a service manager or `timeout`, ends a command as cleanly as a Ctrl-C does."""

    def interrupt(*_: int | FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
