"""Limits that a comparison is to keep: `campaign compare A B --fail-if slower=3%,loss=0.01`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dscampaign.orchestrator.errors import UserError

from .conditions import circumstances, few_repeats
from .difference import Comparison, loss_change
from .reasons import Reason
from .statistics import Standing
from .wording import change

_LIMIT: Final = re.compile(r"\s*(?:(slower)\s*=\s*([\d.]+)%|(loss)\s*=\s*([\d.]+(?:e-?\d+)?))\s*")


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
        try:
            slower, percent, loss, nats = _LIMIT.fullmatch(part).groups()  # type: ignore[union-attr]
            limit = Limit(slower or loss, float(percent) / 100 if percent else float(nats), part.strip())
        except (AttributeError, ValueError) as error:
            raise UserError(f'--fail-if: "{part}" is no limit', "such as `slower=3%,loss=0.01`") from error
        if limits.setdefault(limit.measure, limit) is not limit:
            raise UserError(f"--fail-if has two limits for {limit.measure}")
    return list(limits.values())


def checks(one: Comparison, limits: Sequence[Limit]) -> list[LimitCheck]:
    """Compare the interval of each difference with its limit.

    A limit fails if the whole interval is above it, passes if all of it is at most the limit; else it is undecided.
    """
    return [_check(one, limit) for limit in limits]


def _check(one: Comparison, limit: Limit) -> LimitCheck:
    test, most, doubts = one.result.loss, limit.most, list[Reason | None]()
    if limit.measure == "slower":
        doubts, estimate, most = list(circumstances(one.left, [one.right])), one.step_time, 1 + limit.most
        evidence = f"{one.time_name} {change(estimate)}" if estimate else "no step was timed"
    elif test.verdict is Standing.WORSE and test.difference is None:
        return LimitCheck(limit, LimitOutcome.FAILED, test.reason)
    else:
        estimate, evidence = test.difference, loss_change(one) or test.reason
    doubts.append(few_repeats((one.left, one.right), losses=limit.measure == "loss"))
    doubt = next((doubt.text for doubt in doubts if doubt), "")
    if doubt or estimate is None or not estimate.ends:
        return LimitCheck(limit, LimitOutcome.UNDECIDED, doubt or evidence)
    low, high = estimate.ends
    if low > most or high <= most:
        return LimitCheck(limit, LimitOutcome.FAILED if low > most else LimitOutcome.PASSED, evidence)
    return LimitCheck(limit, LimitOutcome.UNDECIDED, f"{evidence}; add repeats")
