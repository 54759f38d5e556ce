"""Rows of runs and of campaigns: the figures that every view shows, as text and as values to sort by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from dscampaign.db.records import RunStatus
from dscampaign.db.states import AttemptState, RunState
from dscampaign.orchestrator.campaign.activity import LOOKS, doing, why
from dscampaign.orchestrator.campaign.status import CampaignOverview, CampaignStatus
from dscampaign.orchestrator.formatting import duration, figure, rough, short_number

from .text import PLAIN, Page, Style


class ShownRun(NamedTuple):
    """A run with what views add to its status; None or "" for unknown."""

    run: RunStatus
    title: str  # the condition's name for people, without the repeat
    doing: str  # the phase of a running one, `training` or `saving for 12 s`
    why: str  # why it waits, failed, is held or is silent
    left_s: float | None  # seconds that it will still take
    first_micro_batch: int | None  # of its first attempt, if it was retried
    gpus: float | None  # of all its nodes; None before its first attempt, and without Slurm

    @property
    def name(self) -> str:
        """The name that commands take."""
        return self.run.name

    def look(self) -> tuple[str, str]:
        """Return its state as text, and its colour."""
        return state_look(self.run.shown, early=self.run.early, doing=self.doing)

    @property
    def label(self) -> str:
        """The title, with the repeat from the second on."""
        return f"{self.title} · repeat {self.run.repeat + 1}" if self.run.repeat else self.title

    @property
    def share(self) -> float | None:
        """The part of its steps that is done."""
        return min(1.0, (self.run.step or 0) / self.run.target_step) if self.run.target_step else None

    @property
    def reduced(self) -> bool:
        """Whether its micro-batch is smaller than at first."""
        return bool(self.run.micro_batch and self.first_micro_batch and self.run.micro_batch < self.first_micro_batch)


def shown_run(
    run: RunStatus, status: CampaignStatus, *, waits: str = "", title: str = "", gpus: float | None = None
) -> ShownRun:
    """Return a run of a campaign; `waits` is the reason of pending runs without another."""
    return ShownRun(
        run,
        title,
        doing(run, status),
        why(run, status.now_s) or (waits if run.state is RunState.PENDING else ""),
        status.left.runs.get(run.run_id),
        status.first_micro_batch.get(run.run_id),
        gpus,
    )


class Figure(NamedTuple):
    """A figure of a run: its text, and its value, None for unknown."""

    text: Callable[[ShownRun], str]
    value: Callable[[ShownRun], float | None]


def _step(row: ShownRun) -> str:
    """`120/1,000`, `–/1,000` before the first step; "" if nothing is known."""
    done, target = row.run.step, row.run.target_step
    if not target:
        return "" if done is None else f"{done:,}"
    return f"{'–' if done is None else f'{done:,}'}/{target:,}"


FIGURES: Final[Mapping[str, Figure]] = {
    "step": Figure(_step, lambda row: row.share),
    "left": Figure(lambda row: "" if row.left_s is None else duration(row.left_s), lambda row: row.left_s),
    "loss": Figure(lambda row: figure(row.run.loss), lambda row: row.run.loss),
    "tok/s": Figure(lambda row: short_number(row.run.tokens_per_s), lambda row: row.run.tokens_per_s),
    "mfu": Figure(lambda row: "" if row.run.mfu is None else f"{row.run.mfu:.1%}", lambda row: row.run.mfu),
    "memory": Figure(
        lambda row: "" if row.run.mem_reserved_gb is None else f"{row.run.mem_reserved_gb:.1f} GB",
        lambda row: row.run.mem_reserved_gb,
    ),
    "micro-batch": Figure(
        lambda row: f"{row.first_micro_batch}→" * row.reduced + str(row.run.micro_batch or ""),
        lambda row: row.run.micro_batch,
    ),
    "GPUs": Figure(lambda row: "" if row.gpus is None else f"{row.gpus:g}", lambda row: row.gpus),
    "tries": Figure(lambda row: str(row.run.generation or ""), lambda row: row.run.generation),
}

OVERVIEW: Final[Mapping[str, Callable[[CampaignOverview], str]]] = {
    "campaign": lambda row: row.campaign.name,
    "by": lambda row: row.user,
    "runs": lambda row: f"{row.counts.total:,}",
    "device-hours": lambda row: rough(row.device_hours),
    "last activity": lambda row: f"{duration(row.quiet_s)} ago",
    "states": lambda row: "being removed" if row.removed else counts_text(row.totals.shown, row.counts.early),
}
"""The columns of a list of campaigns."""


def state_look(state: str, *, early: bool = False, doing: str = "") -> tuple[str, str]:
    """Return a state of a run or an attempt as text, and its colour; `early`: completed before its target step."""
    sign, colour = LOOKS[state]
    word = "being submitted" if state == AttemptState.INTENT else doing or state  # sbatch has not confirmed it
    return (f"{sign} {word} early", "yellow") if early else (f"{sign} {word}", colour)


def counts_text(counts: Mapping[str, int], early: int = 0, page: Page = PLAIN) -> str:
    """Return `12 completed (2 early), 8 running, 1 failed`, in the order of a run's life."""
    parts = []
    for state, (_, colour) in LOOKS.items():
        if number := counts.get(state):
            more = page.paint(f" ({early:,} early)", Style.YELLOW) if early and state == RunState.COMPLETED else ""
            parts.append(page.paint(f"{number:,} {state}", Style[colour.upper()]) + more)
    return ", ".join(parts)
