"""Goodput: the use of a run's GPU-hours. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dscampaign.db.campaigns import running_s
from dscampaign.db.records import AttemptRow
from dscampaign.db.states import ACTIVE_ATTEMPT, AttemptState
from dscampaign.orchestrator.failures.policy import FailureClass

from .timing import Lines

OTHER_CONFIGURATION: Final = "another configuration"
"""Why an attempt's work was lost that ran before its experiment was changed."""


@dataclass(frozen=True)
class Cost:
    """Seconds times devices: the GPUs that attempts held, or ranks on CPUs.

    Attributes:
        training: in steps that count, after the warm-up of each attempt.
        warm_up: in the first steps of attempts, which compile, allocate and fill caches, unless they were made again.
        around: the rest of attempts that ended well or still run: starting, evaluating, saving, steps made again.
        lost: by failure class, the time of attempts that failed or were cancelled, without their steps that count.
        queued_s: from submission to start, of all attempts; plain seconds.
        untimed: all time of attempts that ended well or still run, if their step times are unknown.
        search: of attempts that ended well or still run, the search for the micro-batch before the training.
        screening: of a campaign, everything of the runs that screened its points.
    """

    training: float
    warm_up: float
    around: float
    lost: Mapping[str, float]
    queued_s: float
    untimed: float = 0.0
    search: float = 0.0
    screening: float = 0.0

    @property
    def total(self) -> float:
        """All of it, without waiting."""
        before = self.search + self.screening
        return before + self.training + self.warm_up + self.around + self.untimed + sum(self.lost.values())


NO_FAILURE: Final = frozenset(kind for kind in FailureClass if not kind.policy.failure)
"""Failure classes that are no failure."""

_BADLY: Final = {AttemptState.FAILED: "unknown", AttemptState.CANCELLED: AttemptState.CANCELLED.value}
"""States of attempts that came to nothing but the steps that count, and what to call that where there is no class."""


def cost_of(
    attempts: Sequence[AttemptRow],
    lines: Lines,
    config_hash: str,
    until_s: float,
    searched_s: Mapping[int | None, float],
    devices_per_rank: float = 1.0,
) -> Cost:
    """Return the cost of a run's attempts, those that still run until now.

    `lines` and `config_hash` are of its present configuration; `searched_s` has the search time by attempt id;
    `devices_per_rank` is the number of GPUs that an attempt holds for each rank.
    """
    training = warm_up = around = queued = untimed = search = 0.0
    lost: dict[str, float] = defaultdict(float)
    for attempt in attempts:
        queued += _queued_s(attempt, until_s)
        devices = attempt.world_size * devices_per_rank
        spent = _seconds(attempt, until_s) * devices
        if attempt.config_hash != config_hash:
            lost[OTHER_CONFIGURATION] += spent
            continue
        steady, first = (seconds * devices for seconds in lines.seconds_of(attempt.generation))
        steady = min(spent, steady)
        first = min(spent - steady, first)
        training += steady
        warm_up += first
        if attempt.state not in _BADLY or attempt.failure_class in NO_FAILURE:
            rest = spent - steady - first
            searching = min(rest, searched_s.get(attempt.id, 0.0) * devices)
            search += searching
            rest -= searching
            if lines.untimed(attempt.generation):
                untimed += rest
            else:
                around += rest
        else:
            lost[attempt.failure_class or _BADLY[attempt.state]] += spent - steady - first
    return Cost(
        training, warm_up, around, {kind: value for kind, value in lost.items() if value > 0}, queued, untimed, search
    )


def _seconds(attempt: AttemptRow, until_s: float) -> float:
    """Return for how long it held each device, as `rank_seconds` counts: an ended attempt by its record."""
    if attempt.state in ACTIVE_ATTEMPT:
        return running_s(attempt.started_s, attempt.created_s, until_s)
    return attempt.gpu_seconds / attempt.world_size


def _queued_s(attempt: AttemptRow, until_s: float) -> float:
    if attempt.submit_time_s is None:
        return 0.0
    end_s = attempt.started_s if attempt.started_s is not None else attempt.ended_s
    if end_s is None:
        end_s = until_s if attempt.state == AttemptState.QUEUED else attempt.submit_time_s
    return max(0.0, end_s - attempt.submit_time_s)
