"""Waiting for what another process does. Limits are for what hangs: a machine that is only busy never reaches them."""

import time
from collections.abc import Callable

HANGS_S = 300.0
"""After so many seconds one step of a test hangs."""

CAMPAIGN_HANGS_S = 1200.0
"""The same of a whole campaign."""

POLL_S = 0.05


def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float = HANGS_S) -> None:
    """Polls until `condition()`, a cheap check, is true; raises TimeoutError that names `what`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(POLL_S)
