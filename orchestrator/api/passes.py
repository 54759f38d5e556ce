"""Passes of the reconciler on a campaign, each with the status after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import NamedTuple

from dscampaign.db.errors import AWAY, StaleLease
from dscampaign.db.records import CampaignRow
from dscampaign.db.states import CANCELLING
from dscampaign.db.store import Store
from dscampaign.orchestrator.campaign.status import MOST_WATCHED, CampaignStatus, read_status, with_final_figures
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.formatting import duration
from dscampaign.orchestrator.reconcile.lease import LeaseHeld
from dscampaign.orchestrator.reconcile.loop import LONGEST_REST_S, Pass, Reconciler
from dscampaign.orchestrator.settings import Settings

CANCELLED_S = 1.0
"""After this time Slurm has ended most jobs."""


def passes(
    store: Store, campaign: CampaignRow, *, cancelled: bool = False
) -> Iterator[tuple[Pass | Exception, CampaignStatus]]:
    """Make one pass, or as many as it takes to start all runs.

    Yield each, or the error that another reconciler is at work. With `cancelled`, another pass sees that jobs have
    ended.
    """
    reconciler = reconciler_of(store, campaign)
    outcome: Pass | Exception
    try:
        while (outcome := reconciler.run_pass()).goes_on:
            yield outcome, read_status(store, campaign)
            del outcome  # before the next: the snapshot of thousands of runs is large
    except (LeaseHeld, StaleLease) as held:
        outcome = held
    finally:
        reconciler.close()
    status = read_status(store, campaign)
    yield outcome, status
    done = isinstance(outcome, Pass) and not outcome.troubles and not status.acting
    if cancelled and done and CANCELLING in status.shown_counts:
        time.sleep(CANCELLED_S)
        yield from passes(store, campaign)


class Detaching(NamedTuple):
    """The wish for a reconciler that goes on: as the user `asked`, or else by default, if it can be a job."""

    settings: Settings
    asked: bool | None

    def start(self, store: Store, campaign: CampaignRow, tell: Callable[[str], object]) -> bool:
        """Start it unless it runs; return whether it runs. By default, only report why it does not."""
        from dscampaign.orchestrator.campaign import detach

        try:
            if self.asked or (self.asked is None and self.settings.detach and detach.runs_as_job(store, campaign)):
                detach.detach(store, campaign, self.settings)
                return True
        except UserError as error:
            if self.asked:
                raise
            tell(f"note: {error.message}{f' ({error.hint})' if error.hint else ''}")
        return False


def reconciler_of(store: Store, campaign: CampaignRow) -> Reconciler:
    """Return the reconciler of a campaign, which can measure trials."""
    return Reconciler(store, campaign, measure=_measured)


def _measured(store: Store, campaign: CampaignRow, names: Collection[str]) -> Mapping[str, Mapping[str, float | None]]:
    # imported here: only a search needs the figures of runs
    from dscampaign.orchestrator.report.measure.load import figures_of

    return figures_of(store, campaign, names)


def until_settled(
    store: Store, campaign: CampaignRow, interval_s: float | None = None, *, sleep: Callable[[float], None] = time.sleep
) -> Generator[tuple[Pass | Exception, CampaignStatus | None]]:
    """Make passes until every run is settled, by this reconciler or another.

    Yield each as `Reconciler.watch` does; the status is None while the store is away.
    """
    reconciler = reconciler_of(store, campaign)
    try:
        for outcome in reconciler.watch(poll_s=interval_s, sleep=sleep):
            status = status_if_any(store, campaign)
            yield outcome, status
            if status and status.settled and isinstance(outcome, LeaseHeld | StaleLease):
                return
    finally:
        reconciler.close()


def status_if_any(store: Store, campaign: CampaignRow) -> CampaignStatus | None:
    """Return the status; None while the store is away, which the next pass reports."""
    try:
        return with_final_figures(store, read_status(store, campaign), MOST_WATCHED)
    except AWAY:
        return None


class Obstacles:
    """Obstacles to passes: each is reported once, and so is the end of them all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, work: str = "reconciling") -> None:
        self._clock, self._work, self._since_s, self._reported = clock, work, 0.0, set[str]()

    def news(self, obstacles: Mapping[str, str]) -> list[str]:
        """Return the lines to print after a pass, given its obstacles as of `in_the_way`."""
        if not obstacles:
            over = f"recovered after {duration(self._clock() - self._since_s)}; {self._work} again"
            lines = [over] if self._reported else []
            self._reported.clear()
            return lines
        if not self._reported:
            self._since_s = self._clock()
        lines = [message for about, message in obstacles.items() if about not in self._reported]
        self._reported.update(obstacles)
        return lines


def in_the_way(outcome: Pass | Exception) -> dict[str, str]:
    """Return the obstacles to a pass, in part or as a whole, as lines by the subject of each."""
    if isinstance(outcome, Pass):
        late = {text: text for text in outcome.undelivered if text}
        return {t.about: f"{t.message} ({t.hint})" if t.hint else t.message for t in outcome.troubles} | late
    hint = getattr(outcome, "hint", "")
    if isinstance(outcome, AWAY):
        hint += f"; the next try is within {LONGEST_REST_S:.0f} s"
    return {type(outcome).__name__: f"{outcome} ({hint})" if hint else str(outcome)}
