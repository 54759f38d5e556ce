"""What stopping or retrying comes to: which runs it changes, which it leaves, and how that is said. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from dscampaign.db.records import RunRow
from dscampaign.db.states import ENDED_RUN, RETRYABLE_RUN, UNNAMED, WANTED, RunState, shown_state
from dscampaign.orchestrator.executors.job_request import run_config
from dscampaign.orchestrator.formatting import count


@dataclass(frozen=True)
class Cancellation:
    """Runs that are to end, ended ones that are not to be tried again, and those to which nothing happens."""

    ending: Sequence[RunRow]
    given_up: Sequence[RunRow]
    left: Sequence[RunRow]

    @property
    def text(self) -> str:
        """What a cancellation does: `cancelling 3 runs`, and to which runs it does less or nothing."""
        nothing = f"{'no job' if self.given_up else 'nothing'} to cancel: {self._settled}"
        lines = [f"cancelling {count(len(self.ending), 'run')}" if self.ending else nothing]
        lines += [f"no further attempt: {_counted(self.given_up)}"] if self.given_up else []
        lines += [f"left as they are: {_counted(self.left)}"] if self.left and self.ending else []
        return "\n".join(lines)

    @property
    def _settled(self) -> str:
        runs = [*self.given_up, *self.left]
        return f"{runs[0].name} is already {runs[0].state}" if len(runs) == 1 else "no such run is queued or running"


def cancellation_of(runs: Sequence[RunRow]) -> Cancellation:
    """What cancelling these runs does."""
    tried = (RunState.FAILED, RunState.SCREENED)
    given_up = [run for run in runs if run.state in tried and run.desired in WANTED]
    chosen = {run.id for run in given_up}
    left = [run for run in runs if run.state in ENDED_RUN and run.id not in chosen]
    return Cancellation([run for run in runs if run.state not in ENDED_RUN], given_up, left)


@dataclass(frozen=True)
class Retry:
    """Runs that a retry begins again, and those that it leaves as they are."""

    again: Sequence[RunRow]
    left: Sequence[RunRow]

    @property
    def text(self) -> str:
        """How many, by their states: `retrying 3 runs: 2 failed, 1 held`, and what stays as it is."""
        number = len(self.again)
        again = f"retrying {count(number, 'run')}: {_counted(self.again)}" if number else "nothing to retry"
        return again + (f"\nleft as they are: {_counted(self.left)}" if self.left else "")

    @property
    def may_follow(self) -> str | None:
        """What to type after the campaign's name for those that it leaves, and which these are; None for nothing."""
        left = [run for run in self.left if run.state in RETRYABLE_RUN]
        if any(run.state is RunState.CANCELLED and run.desired not in UNNAMED for run in left):
            return "--all, for those that were cancelled"
        if any(run.desired in UNNAMED for run in left):
            return "RUN, for a run that is no longer in the spec"
        return "RUN, for a run that the screening left out" if left else None

    @property
    def gpu_hours(self) -> float:
        """The maximum that one attempt of each can use within its time limit; 0 without Slurm."""
        configs = map(run_config, self.again)
        return sum(config.slurm.most_gpu_hours for config in configs if config.executor == "slurm")


def _counted(runs: Iterable[RunRow]) -> str:
    """`2 failed, 1 cancelling`."""
    shown = ("no longer in the spec" if run.desired in UNNAMED else shown_to_user(run) for run in runs)
    return ", ".join(f"{number:,} {what}" for what, number in Counter(shown).items())


def retry_of_all(runs: Sequence[RunRow], *, cancelled: bool) -> Retry:
    """Of a campaign's runs those that failed or are held; with `cancelled` also those that were.

    Those stay as they are that the spec no longer names, or that the screening left out.
    """
    states = (RunState.FAILED, RunState.HELD, *([RunState.CANCELLED] if cancelled else []))
    return _retry([run for run in runs if run.state in states and run.desired not in UNNAMED], runs)


def retry_of_named(runs: Sequence[RunRow], early: Collection[int], *, unnamed: bool) -> Retry:
    """Of the runs that the user chose those that can be retried.

    Args:
        runs: as chosen.
        early: ids of those that completed early.
        unnamed: also those that the spec no longer names.
    """
    possible = (run for run in runs if run.state in RETRYABLE_RUN or run.id in early)
    return _retry([run for run in possible if unnamed or run.desired not in UNNAMED], runs)


def _retry(again: Sequence[RunRow], runs: Iterable[RunRow]) -> Retry:
    chosen = {run.id for run in again}
    return Retry(again, [run for run in runs if run.id not in chosen])


def shown_to_user(run: RunRow) -> str:
    """A run's state as the user is told it."""
    return str(shown_state(run.state, run.desired))
