"""Reconcilers as processes of their own, which can be killed or stopped in the midst of what they do."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dscampaign.db.errors import StaleLease, StoreUnreachable
from dscampaign.db.records import CampaignRow
from dscampaign.db.store import Store
from dscampaign.orchestrator.errors import Unreachable
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.orchestrator.reconcile.loop import Reconciler
from dscampaign.orchestrator.report.measure.load import figures_of

POLL_S = 0.2
EXIT_STALE = 7
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Boundary:
    """A point between two effects of a pass: just before, or just after, a function of the program.

    Attributes:
        owner: The module or class that has the function.
        name: The function.
        when: What its arguments must be for this to count.
    """

    owner: Any
    name: str
    after: bool
    when: Callable[..., bool] = lambda *_, **__: True

    def __str__(self) -> str:
        owner = getattr(self.owner, "__name__", "").rpartition(".")[2]
        return f"{'after' if self.after else 'before'}-{owner}.{self.name.strip('_')}"

    def install(self, number: signal.Signals) -> None:
        """Sends this process a signal at the boundary, for as long as it lives."""
        function = getattr(self.owner, self.name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            counts = self.when(*args, **kwargs)
            if counts and not self.after:
                os.kill(os.getpid(), number)
            result = function(*args, **kwargs)
            if counts and self.after:
                os.kill(os.getpid(), number)
            return result

        setattr(self.owner, self.name, wrapped)


def start(work: Callable[..., None], *args: object) -> BaseProcess:
    """Forks a process that does the work."""
    process = _FORK.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def reconcile(url: str, campaign: CampaignRow, prepare: Callable[[], None] = lambda: None) -> None:
    """Passes until the campaign is settled; exits with EXIT_STALE when another has taken over."""
    prepare()
    reconciler = Reconciler(Store.open(url), campaign, measure=figures_of)
    while True:
        try:
            if reconciler.run_pass().settled:
                return
        except StaleLease:
            os._exit(EXIT_STALE)
        except (LeaseHeld, StoreUnreachable, Unreachable):
            pass
        time.sleep(POLL_S)


def take_turns(url: str, campaign: CampaignRow, log: Path, prepare: Callable[[], None]) -> None:
    """As above, but the lease is given back after each pass, so that others can act; logs each pass that acted."""
    prepare()
    reconciler = Reconciler(Store.open(url), campaign, measure=figures_of)
    while True:
        try:
            done = reconciler.run_pass()
            reconciler.close()
            if done.actions:
                with log.open("a") as file:
                    file.write(f"{len(done.actions)}\n")
            if done.settled:
                return
        except (LeaseHeld, StaleLease, StoreUnreachable, Unreachable):
            pass
        time.sleep(POLL_S / 4)


def is_stopped(process: BaseProcess) -> bool:
    """Whether a signal has stopped it in its tracks."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
