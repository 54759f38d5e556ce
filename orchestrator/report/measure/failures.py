"""The failed attempts of a run, and the reaction to each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import RunState
from dscampaign.orchestrator.formatting import clean, words

from .cost import NO_FAILURE


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed, with its failure class and the reaction."""

    run: str
    generation: int
    kind: str
    reason: str
    then: str


def failed_attempts(
    run: RunRow, attempts: Sequence[AttemptRow], excluded: Mapping[int | None, Sequence[str]]
) -> Iterator[FailedAttempt]:
    """Return the failed attempts, oldest first; the last of a failed run with the reason of the run.

    Args:
        excluded: nodes that an attempt was to do without, by attempt id.
    """
    failed = run.state == RunState.FAILED
    for attempt, later in zip_longest(attempts, attempts[1:]):
        if attempt.failure_class and attempt.failure_class not in NO_FAILURE:
            yield FailedAttempt(
                run=run.name,
                generation=attempt.generation,
                kind=words(attempt.failure_class),
                reason=clean(str((run.reason if not later and failed else "") or attempt.evidence.get("reason") or "")),
                then=_retry(attempt, later, excluded.get(later.id, ())) if later else _end(run),
            )


def _retry(failed: AttemptRow, later: AttemptRow, excluded: Sequence[str]) -> str:
    whence = "" if later.start_step is None else f" from step {later.start_step:,}"  # a script with its own checkpoints
    done = [f"attempt {later.generation}{whence}"]
    if later.micro_batch != failed.micro_batch:
        done.append(f"micro-batch {failed.micro_batch} → {later.micro_batch}")
    if later.changes != failed.changes:
        done.append(f"with {later.changes}")
    if excluded:
        done.append(f"without {' '.join(excluded)}")
    if later.config_hash != failed.config_hash:
        done.append("of a changed experiment")
    return ", ".join(done)


def _end(run: RunRow) -> str:
    return "no further try" if run.state == RunState.FAILED else f"run is {run.state}"
