"""Selects runs by state, and by names and patterns. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Protocol, TypeVar

from dscampaign.db.states import RunState
from dscampaign.orchestrator.commands import typed
from dscampaign.orchestrator.errors import UserError, nearest

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
