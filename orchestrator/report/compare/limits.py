"""Limits that a comparison is to keep: `campaign compare A B --fail-if slower=3%,loss=0.01`. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dscampaign.orchestrator.errors import UserError, did_you_mean

from .conditions import circumstances, few_repeats
from .difference import Comparison, loss_change
from .reasons import Reason
from .statistics import Estimate, Standing
from .wording import change

SLOWER, LOSS = "slower", "loss"
_USAGE: Final = "such as `slower=3%,loss=0.01`"


class LimitOutcome(StrEnum):
    """Whether a comparison keeps a limit; the data may be too few to decide."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Limit:
    """The most by which B may be worse than A: a part of the step time, or a difference of losses."""

    measure: str
    most: float
    text: str


@dataclass(frozen=True)
class LimitCheck:
    """A comparison beside a limit, with the evidence or the reason that the data cannot decide."""

    limit: Limit
    outcome: LimitOutcome
    reason: str


def limits_of(text: str) -> list[Limit]:
    """Return the limits in the text of `--fail-if`; raise UserError if it has a mistake."""
    limits: dict[str, Limit] = {}
    for part in text.split(","):
        limit = _limit(part.strip())
        if limit.measure in limits:
            raise UserError(f"--fail-if has two limits for {limit.measure}", _USAGE)
        limits[limit.measure] = limit
    return list(limits.values())


def _limit(text: str) -> Limit:
    measure, equals, value = (part.strip() for part in text.partition("="))
    if measure not in (SLOWER, LOSS):
        raise UserError(f'--fail-if has no limit named "{measure}"', did_you_mean(measure, (SLOWER, LOSS), _USAGE))
    percent = value.endswith("%")
    try:
        most = float(value.removesuffix("%"))
    except ValueError:
        most = math.nan
    if not equals or not 0 <= most < math.inf:
        raise UserError(f'--fail-if {text}: "{value}" is not a number from 0 up', _USAGE)
    if percent != (measure == SLOWER):
        unit = "a percentage of the step time" if measure == SLOWER else "a difference of losses"
        raise UserError(f"--fail-if {text}: the limit is {unit}", _USAGE)
    return Limit(measure, most / 100 if percent else most, f"{measure}={value}")


def checks(one: Comparison, limits: Sequence[Limit]) -> list[LimitCheck]:
    """Compare the interval of each difference with its limit.

    A limit fails if the whole interval is above it, passes if all of it is at most the limit; else it is undecided.
    """
    return [_speed(one, limit) if limit.measure == SLOWER else _loss(one, limit) for limit in limits]


def _speed(one: Comparison, limit: Limit) -> LimitCheck:
    doubts = [*circumstances(one.left, [one.right]), few_repeats((one.left, one.right), losses=False)]
    found = one.step_time
    evidence = f"{one.time_name} {change(found)}" if found else "no step was timed"
    return _check(limit, 1 + limit.most, found, doubts, evidence)


def _loss(one: Comparison, limit: Limit) -> LimitCheck:
    test = one.result.loss
    if test.verdict is Standing.WORSE and test.difference is None:
        return LimitCheck(limit, LimitOutcome.FAILED, test.reason)
    difference, doubt = test.difference, few_repeats((one.left, one.right), losses=True)
    return _check(limit, limit.most, difference, [doubt], loss_change(one) if difference else test.reason)


def _check(
    limit: Limit, most: float, estimate: Estimate | None, doubts: Sequence[Reason | None], evidence: str
) -> LimitCheck:
    doubt = next((doubt.text for doubt in doubts if doubt), "")
    if doubt or estimate is None or not estimate.ends:
        return LimitCheck(limit, LimitOutcome.UNDECIDED, doubt or evidence)
    low, high = estimate.ends
    if low > most or high <= most:
        return LimitCheck(limit, LimitOutcome.FAILED if low > most else LimitOutcome.PASSED, evidence)
    return LimitCheck(limit, LimitOutcome.UNDECIDED, f"{evidence}; add repeats")
