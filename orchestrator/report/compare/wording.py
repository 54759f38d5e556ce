"""Estimates and comparisons as parts of a sentence or of a table. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ...formatting import figure, short_number
from .statistics import Estimate, LossTest


def times(found: Estimate) -> str:
    """A ratio, with its interval where there is one."""
    return f"{found.value:.2f}{interval(found, '{:.2f}'.format)}"


def interval(found: Estimate, number: Callable[[float], str]) -> str:
    """` [low, high]`, to follow the value; nothing where there is none."""
    return "" if found.low is None or found.high is None else f" [{number(found.low)}, {number(found.high)}]"


def span(found: Estimate | None) -> str:
    """The interval of a median."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{short_number(found.low)} to {short_number(found.high)}"


def deviation(found: Estimate | None, scale: float = 1.0) -> str:
    """The standard deviation over repeats, in a unit of which its own is ``scale``."""
    if found is None or found.std is None:
        return ""
    std = found.std * scale
    return short_number(std) if std >= 1000 else figure(std, 3)


def difference(found: Estimate) -> str:
    """Of losses, with its sign; what rounds to nothing has none of its own."""
    return f"{round(found.value, 4) + 0.0:+.4f}"


def loss_margin(margin: float) -> str:
    """How far losses may be apart and count as equal; a script's own may be tiny."""
    return f"{margin:.3f}" if margin >= 0.001 else f"{margin:.1g}"


def loss_gap(value: float, unit: str, sign: str = "+") -> str:
    """How far losses are apart, without their unit; those of a script, which have none, may be tiny."""
    if not unit and abs(value) < 0.001:
        return f"{value:{sign}.1g}"
    return f"{value if round(value, 3) else 0.0:{sign}.3f}"


def loss_verdict(test: LossTest) -> str:
    """What a comparison of losses has shown, with its margin or why it has shown nothing."""
    return f"{test.verdict} (± {loss_margin(test.margin)})" if not test.reason else f"{test.verdict}: {test.reason}"
