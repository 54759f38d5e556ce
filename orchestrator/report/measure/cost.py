"""Goodput: the use of a run's GPU-hours; and its failed attempts. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from dscampaign.db.campaigns import running_s
from dscampaign.db.records import AttemptRow, RunRow
from dscampaign.db.states import ACTIVE_ATTEMPT, AttemptState, RunState
from dscampaign.orchestrator.failures.policy import FailureClass
from dscampaign.orchestrator.formatting import clean, words

from .timing import Lines

_NO_FAILURE: Final = frozenset(kind for kind in FailureClass if not kind.policy.failure)
_BADLY: Final = {AttemptState.FAILED: "unknown", AttemptState.CANCELLED: AttemptState.CANCELLED.value}
"""States of attempts that came to nothing but the steps that count, and their class if they have none."""


@dataclass(frozen=True)
class Cost:
    """Seconds times devices: the GPUs that attempts held, or ranks on CPUs.

    Attributes:
        lost: by failure class, the time of attempts that failed or were cancelled, without their steps that count.
        training, warm_up: in steps that count, and in steps before them, unless they were made again.
        around: the rest of attempts that ended well or still run: starting, evaluating, saving, steps made again.
        queued_s: from submission to start, of all attempts; plain seconds.
        untimed, search: of such attempts, all time if step times are unknown; the search for the micro-batch.
        screening: of a campaign, everything of trials and of follow-ups.
    """

    lost: Mapping[str, float]
    training: float = 0.0
    warm_up: float = 0.0
    around: float = 0.0
    queued_s: float = 0.0
    untimed: float = 0.0
    search: float = 0.0
    screening: float = 0.0

    @property
    def total(self) -> float:
        """All of it, without waiting."""
        before = self.search + self.screening
        return before + self.training + self.warm_up + self.around + self.untimed + sum(self.lost.values())


def cost_of(
    attempts: Sequence[AttemptRow], lines: Lines, config_hash: str, until_s: float, searched_s: Mapping[int, float],
    devices_per_rank: float,
) -> Cost:  # fmt: skip
    """Return the cost of a run's attempts; active attempts count until now.

    `lines` and `config_hash` are of its present configuration; `searched_s` has the search time by attempt id;
    `devices_per_rank` is the number of GPUs that an attempt holds for each rank.
    """
    sums, lost = defaultdict[str, float](float), defaultdict[str, float](float)
    for attempt in attempts:
        end_s = attempt.started_s if attempt.started_s is not None else attempt.ended_s
        if end_s is None and attempt.state == AttemptState.QUEUED:
            end_s = until_s
        sums["queued_s"] += max(0.0, (end_s or 0.0) - (attempt.submit_time_s or math.inf))
        devices = attempt.world_size * devices_per_rank
        is_active = attempt.state in ACTIVE_ATTEMPT  # an ended attempt counts by its record, as in `rank_seconds`
        held_s = running_s(attempt.started_s, attempt.created_s, until_s) if is_active else None
        rest = (attempt.gpu_seconds / attempt.world_size if held_s is None else held_s) * devices
        if attempt.config_hash != config_hash:
            lost["another configuration"] += rest
            continue
        for use, seconds in zip(("training", "warm_up"), lines.seconds_of(attempt.generation), strict=True):
            spent = min(rest, seconds * devices)
            sums[use] += spent
            rest -= spent
        if attempt.state not in _BADLY or attempt.failure_class in _NO_FAILURE:
            searching = min(rest, max(0.0, searched_s.get(attempt.id, 0.0)) * devices)
            sums["search"] += searching
            sums["untimed" if lines.untimed(attempt.generation) else "around"] += rest - searching
        else:
            lost[attempt.failure_class or _BADLY[attempt.state]] += rest
    return Cost({kind: value for kind, value in lost.items() if value > 0}, **sums)


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt that failed, with its failure class and the reaction."""

    run: str
    generation: int
    kind: str
    reason: str
    then: str


def failed_attempts(
    run: RunRow, attempts: Sequence[AttemptRow], excluded: Mapping[int, Sequence[str]]
) -> Iterator[FailedAttempt]:
    """Return the failed attempts, oldest first; the last of a failed run with the reason of the run.

    By attempt id, `excluded` has the nodes that it was to do without.
    """
    failed = run.state == RunState.FAILED
    end = "no further try" if failed else f"run is {run.state}"
    for attempt, later in zip_longest(attempts, attempts[1:]):
        if attempt.failure_class and attempt.failure_class not in _NO_FAILURE:
            yield FailedAttempt(
                run=run.name,
                generation=attempt.generation,
                kind=words(attempt.failure_class),
                reason=clean(str((run.reason if not later and failed else "") or attempt.evidence.get("reason") or "")),
                then=_retry(attempt, later, excluded.get(later.id, ())) if later else end,
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
