"""Selects runs by state, and by names and patterns; counts them by state. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Protocol, Self, TypeVar

from dscampaign.db.states import RunState
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import UserError, nearest


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
