"""Selects runs by state, and by names and patterns; counts them by state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, Self, TypeVar

from dscampaign.db.records import RunRow
from dscampaign.db.states import ENDED_RUN, RETRYABLE_RUN, UNNAMED, WANTED, RunState, shown_state
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import UserError, nearest
from dscampaign.orchestrator.formatting import count


class _Counted(Protocol):
    @property
    def state(self) -> RunState: ...

    @property
    def early(self) -> bool: ...


@dataclass(frozen=True)
class RunCounts:
    """Runs by state; `early` of the completed ones did so before their target step."""

    states: Mapping[RunState, int]
    early: int = 0

    @classmethod
    def of(cls, runs: Iterable[_Counted]) -> Self:
        """Count these runs."""
        known = list(runs)
        return cls(Counter(run.state for run in known), sum(run.early for run in known))

    @property
    def total(self) -> int:
        """All runs."""
        return sum(self.states.values())

    @property
    def completed(self) -> int:
        """Completed runs, early or not."""
        return self.states.get(RunState.COMPLETED, 0)

    @property
    def note(self) -> str:
        """The note behind the number of completed runs: ` (2 early)`."""
        return f" ({self.early:,} early)" if self.early else ""

    def document(self) -> dict[str, Any]:
        """Return the counts for `--json`: every state, also those without a run."""
        counts = {str(state): self.states.get(state, 0) for state in RunState}
        return {"counts": counts, "completed_early": self.early}


_PATTERN: Final = frozenset("*?[")


class _Run(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def state(self) -> RunState: ...


_SomeRun = TypeVar("_SomeRun", bound=_Run)


@dataclass(frozen=True)
class Selection:
    """Runs in one of these states, with a name that matches one of these patterns; a name is a pattern, too."""

    states: Collection[RunState] = ()
    patterns: Collection[str] = ()

    def __bool__(self) -> bool:
        return bool(self.states or self.patterns)

    def of(self, runs: Iterable[_SomeRun], campaign: str) -> list[_SomeRun]:
        """Return these runs of the campaign. Raises UserError for a name or pattern without a run."""
        known = list(runs)
        named = self._named(known, campaign) if self.patterns else {run.name for run in known}
        return [run for run in known if run.name in named and (not self.states or run.state in self.states)]

    def none(self, campaign: str) -> str:
        """Return that there is no such run: `no run of sweep is failed or held`."""
        which = f" that matches {' or '.join(self.patterns)}" if self.patterns else ""
        return f"no run of {campaign}{which} is {' or '.join(state for state in RunState if state in self.states)}"

    def _named(self, runs: Sequence[_Run], campaign: str) -> set[str]:
        names = dict.fromkeys(run.name for run in runs)
        found = {name for name in self.patterns if name in names}  # thousands may be named
        for pattern in (one for one in self.patterns if one not in names):
            matching = [name for name in names if fnmatchcase(name, pattern)]
            if not matching:
                what = f"matches {pattern}" if _PATTERN & set(pattern) else f"named {pattern}"
                near = None if _PATTERN & set(pattern) else nearest(pattern, names)
                hint = f'did you mean "{near}"?' if near else f"`{typed('status', campaign)}` lists them"
                raise UserError(f"no run {what} in {campaign}", hint)
            found.update(matching)
        return found


@dataclass(frozen=True)
class Cancellation:
    """Runs to end, ended runs that are not to be tried again, and runs that stay as they are."""

    ending: Sequence[RunRow]
    given_up: Sequence[RunRow]
    left: Sequence[RunRow]

    @property
    def text(self) -> str:
        """The effect as text: `cancelling 3 runs`, and the runs with less or no effect."""
        nothing = f"{'no job' if self.given_up else 'nothing'} to cancel: {self._settled}"
        lines = [f"cancelling {count(len(self.ending), 'run')}" if self.ending else nothing]
        lines += [f"no further attempt: {_counted(self.given_up)}"] if self.given_up else []
        lines += [f"unchanged: {_counted(self.left)}"] if self.left and self.ending else []
        return "\n".join(lines)

    @property
    def _settled(self) -> str:
        runs = [*self.given_up, *self.left]
        return f"{runs[0].name} is already {runs[0].state}" if len(runs) == 1 else "no chosen run is queued or running"


def cancellation_of(runs: Sequence[RunRow]) -> Cancellation:
    """Return the effect of cancelling these runs."""
    tried = (RunState.FAILED, RunState.SCREENED)
    given_up = [run for run in runs if run.state in tried and run.desired in WANTED]
    chosen = {run.id for run in given_up}
    left = [run for run in runs if run.state in ENDED_RUN and run.id not in chosen]
    return Cancellation([run for run in runs if run.state not in ENDED_RUN], given_up, left)


@dataclass(frozen=True)
class Retry:
    """Runs that a retry begins again, and runs that it leaves as they are."""

    again: Sequence[RunRow]
    left: Sequence[RunRow]

    @property
    def text(self) -> str:
        """How many, by their states: `retrying 3 runs: 2 failed, 1 held`, and the runs that stay."""
        number = len(self.again)
        again = f"retrying {count(number, 'run')}: {_counted(self.again)}" if number else "nothing to retry"
        return again + (f"\nunchanged: {_counted(self.left)}" if self.left else "")

    @property
    def may_follow(self) -> tuple[str, str] | None:
        """The argument behind the campaign's name for the runs that it leaves, and a description; None for nothing."""
        left = [run for run in self.left if run.state in RETRYABLE_RUN]
        if any(run.state is RunState.CANCELLED and run.desired not in UNNAMED for run in left):
            return "--all", "for the cancelled runs"
        if any(run.desired in UNNAMED for run in left):
            return "RUN", "for a run that is no longer in the spec"
        return ("RUN", "for a run that the screening left out") if left else None

    @property
    def gpu_hours(self) -> float:
        """The maximum that one attempt of each can use within its time limit; 0 without Slurm."""
        from dscampaign.orchestrator.executors.job_request import run_config  # with pydantic, which a status needs not

        configs = map(run_config, self.again)
        return sum(config.slurm.most_gpu_hours for config in configs if config.executor == "slurm")


def _counted(runs: Iterable[RunRow]) -> str:
    shown = ("no longer in the spec" if run.desired in UNNAMED else shown_to_user(run) for run in runs)
    return ", ".join(f"{number:,} {what}" for what, number in Counter(shown).items())


def retry_of_all(runs: Sequence[RunRow], *, cancelled: bool) -> Retry:
    """Return the runs of a campaign that failed or are held; with `cancelled` also cancelled ones.

    Runs that the spec no longer names or that the screening left out stay as they are.
    """
    states = (RunState.FAILED, RunState.HELD, *([RunState.CANCELLED] if cancelled else []))
    return _retry([run for run in runs if run.state in states and run.desired not in UNNAMED], runs)


def retry_of_named(runs: Sequence[RunRow], early: Collection[int], *, unnamed: bool) -> Retry:
    """Return the chosen runs that can be retried; `early` are the ids of those that completed early."""
    possible = (run for run in runs if run.state in RETRYABLE_RUN or run.id in early)
    return _retry([run for run in possible if unnamed or run.desired not in UNNAMED], runs)


def _retry(again: Sequence[RunRow], runs: Iterable[RunRow]) -> Retry:
    chosen = {run.id for run in again}
    return Retry(again, [run for run in runs if run.id not in chosen])


def shown_to_user(run: RunRow) -> str:
    """Return a run's state as the user sees it."""
    return str(shown_state(run.state, run.desired))
