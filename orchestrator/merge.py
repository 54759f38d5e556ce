"""A spec's runs against the stored ones: what is new, kept, changed or gone. Pure.

A run is recognised by the hash of its experiment, so it keeps its name and its results when the matrix grows around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..db.records import RunRow, RunState
from .errors import UserError
from .expand import Run

ABSENT = "absent"
"""What a run's `desired` is when the spec no longer names it."""

_STARTED = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.COMPLETED})
_JUDGED = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.HELD})


@dataclass(frozen=True)
class Merge:
    """What submitting a spec changes.

    Attributes:
        create: runs that are new.
        keep: stored runs that the spec still names, with what it says of them now.
        replace: stored runs of the same name whose experiment was changed before anything came of them.
        drop: stored runs that the spec no longer names.
    """

    create: tuple[Run, ...]
    keep: tuple[tuple[RunRow, Run], ...]
    replace: tuple[tuple[RunRow, Run], ...]
    drop: tuple[RunRow, ...]

    @property
    def ordered(self) -> list[tuple[RunRow | None, Run]]:
        """All runs of the spec with their stored rows, in no particular order."""
        return [*((None, run) for run in self.create), *self.keep, *self.replace]


def merge(runs: Sequence[Run], stored: Sequence[RunRow]) -> Merge:
    """Compares the runs of a spec with those that the store has of the campaign.

    Raises:
        UserError: a run that has started or finished would become another experiment under the same name.
    """
    by_hash = {row.config_hash: row for row in reversed(stored)}
    keep = tuple((by_hash[run.config_hash], run) for run in runs if run.config_hash in by_hash)
    kept = {row.name for row, _ in keep}
    by_name = {row.name: row for row in stored if row.name not in kept}
    rest = [_renamed(run, kept) for run in runs if run.config_hash not in by_hash]
    changed = tuple((by_name[run.name], run) for run in rest if run.name in by_name)
    _refuse_started(changed)
    named = kept | {row.name for row, _ in changed}
    return Merge(
        create=tuple(run for run in rest if run.name not in by_name),
        keep=keep,
        replace=changed,
        drop=tuple(row for row in stored if row.name not in named),
    )


def wanted_again(row: RunRow) -> RunRow:
    """The row as it is once the spec names its run again: cancelled for its absence, it starts with fresh budgets."""
    if row.desired != ABSENT:
        return row
    row = replace(row, desired="run")
    if row.state in _JUDGED:
        return row
    state = RunState.PENDING if row.state is RunState.CANCELLED else row.state
    return replace(row, state=state, reason="", retry_epoch=row.retry_epoch + 1)


def _renamed(run: Run, taken: set[str]) -> Run:
    """A new run must not take the name of a kept one that the grown matrix would now name otherwise."""
    return replace(run, name=f"{run.name}-{run.config_hash[:6]}") if run.name in taken else run


def _refuse_started(changed: Sequence[tuple[RunRow, Run]]) -> None:
    started = [row for row, _ in changed if row.state in _STARTED]
    if not started:
        return
    first, more = started[0], f" (and {len(started) - 1} more)" if len(started) > 1 else ""
    advice = "cancel it first, or " if first.state is not RunState.COMPLETED else ""
    raise UserError(
        f"run {first.name}{more} is {first.state}, and its experiment has changed in the spec",
        f"results under one name must come from one experiment: {advice}give the campaign another name",
    )
