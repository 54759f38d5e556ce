"""How conditions do by an objective: a figure of each repeat, and a score that is higher the better it is. Pure.

Loss has a test of its own, see `statistics.loss_test`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dscampaign.orchestrator.formatting import duration, loss_number, short_number
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective

from .baseline import BaselineComparison, compare_speeds, times_as_fast
from .conditions import unlike
from .ranking import ties
from .statistics import Order, estimate, ratio
from .wording import times
from .workloads import common_loss, seconds_to_loss

TIED: Final = "tie"


@dataclass(frozen=True)
class Yardstick:
    """The measure of a run for an objective.

    Attributes:
        best: text for the best condition.
        missing: text for a condition without the measure.
        number: a figure as text, in `unit`.
        lower: whether less is better.
    """

    of: Callable[[MeasuredRun], float | None]
    best: str
    missing: str
    number: Callable[[float], str]
    unit: str
    lower: bool = True


@dataclass(frozen=True)
class Answer:
    """The choice for a workload, and the next best condition.

    Attributes:
        figure: of the chosen condition, with its interval.
        runner_up: the next best condition; empty if there is no other.
        gain: the lead of the chosen condition.
        shown: certainty of the lead: `established`, `tie` or `not established`; empty without a runner-up.
        level: whether no condition even looks ahead.
    """

    condition: str
    figure: str
    runner_up: str = ""
    gain: str = ""
    shown: str = ""
    level: bool = False


def yardstick(by: Objective, compared: Sequence[BaselineComparison]) -> Yardstick:
    """Return the measure of an objective; the loss of `time-to-loss` is a level that all of these reach."""
    if by is not Objective.TIME_TO_LOSS:
        return _YARDSTICKS[by]
    target = common_loss([one.condition for one in compared])
    return Yardstick(
        lambda run: None if target is None else seconds_to_loss(run, target),
        f"trains for the shortest time to a loss of {loss_number(target or 0.0, 3)}",
        "its loss did not come down to that of the others, or when it did is not known",
        duration,
        "",
    )


def scored(stick: Yardstick, compared: Sequence[BaselineComparison]) -> list[BaselineComparison]:
    """Return these with scores in place of speeds, without conditions that were not measured."""
    scores = {one.condition.name: _scores(stick, one) for one in compared}
    baseline = next((scores[one.condition.name] for one in compared if one.is_baseline), ())
    return [
        replace(one, speeds=own, speed=estimate(own), times_baseline=ratio(own, baseline, one.among), rounds=())
        for one in compared
        if (own := scores[one.condition.name])
    ]


def figure_text(stick: Yardstick, one: BaselineComparison) -> str:
    """Return the median of a condition's figures, with its interval if known."""
    found = estimate(_figures(stick, one))
    if found is None:
        return ""
    said, low, high = ("" if one is None else stick.number(one) for one in (found.value, found.low, found.high))
    return f"{said}{f' [{low}, {high}]' if low != high else ''} {stick.unit}".rstrip()


def answer(stick: Yardstick, chosen: BaselineComparison, compared: Sequence[BaselineComparison]) -> Answer:
    """Return the chosen condition beside the next best; `compared` have their scores."""
    name, said = chosen.condition.name, figure_text(stick, chosen)
    others = [one for one in compared if one.condition.name != name and one.speed]
    if not others:
        return Answer(name, said)
    following = max(others, key=lambda one: one.speed.value if one.speed else 0.0)
    gain = times_as_fast(chosen, following)
    by_chance = unlike(chosen.condition, following.condition)
    shown = _SHOWN[Order.INCONCLUSIVE if by_chance else compare_speeds(chosen, following)]
    level = ties(chosen, following)
    return Answer(name, said, following.condition.name, f"{times(gain)} ×" if gain else "", shown, level)


_SHOWN: Final = {
    Order.FASTER: "established",
    Order.TIE: TIED,
    Order.SLOWER: "worse",
    Order.INCONCLUSIVE: "not established",
}


def _figures(stick: Yardstick, one: BaselineComparison) -> tuple[float, ...]:
    """Return the figure of each repeat that counts; none if one is unknown."""
    found = [stick.of(run) for run in one.condition.counted]
    known = [value for value in found if value is not None and math.isfinite(value) and value > 0]
    return tuple(known) if len(known) == len(found) else ()


def _scores(stick: Yardstick, one: BaselineComparison) -> tuple[float, ...]:
    return tuple(1.0 / value if stick.lower else value for value in _figures(stick, one))


def _three_digits(value: float) -> str:
    return f"{value:#.3g}".rstrip(".")


def _speed(run: MeasuredRun) -> float | None:
    return METRICS["tokens_per_s"].of(run)


_YARDSTICKS: Final[Mapping[Objective, Yardstick]] = {
    Objective.SPEED: Yardstick(
        _speed, "is the fastest", "no step was timed", short_number, "tokens/s", lower=False
    ),
    Objective.MEMORY: Yardstick(
        METRICS["mem_reserved_gb"].of, "needs the least memory", "memory was not measured", "{:.1f}".format, "GB"
    ),
    Objective.ENERGY: Yardstick(
        METRICS["j_per_token"].of, "takes the least energy", "energy was not measured", _three_digits, "J/token"
    ),
}  # fmt: skip
