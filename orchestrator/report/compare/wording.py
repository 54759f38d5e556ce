"""Estimates and comparisons as parts of a sentence or of a table. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable

from dscampaign.orchestrator.formatting import LARGE_LOSS, figure, shell_line, words

from .statistics import Estimate, LossTest, Standing


def times(estimate: Estimate) -> str:
    """Return a ratio, with its interval if known."""
    return f"{estimate.value:.2f}{interval(estimate, '{:.2f}'.format)}"


def change(estimate: Estimate) -> str:
    """Return a ratio as a change in percent, with its interval if known: `+4.1 % [3.2, 5.0]`."""
    percent = f"{estimate.value - 1:+.1%}".replace("%", " %")
    return percent + interval(estimate, lambda ratio: f"{100 * (ratio - 1):.1f}")


def interval(estimate: Estimate, number: Callable[[float], str]) -> str:
    """Return ` [low, high]`, to follow the value; "" without an interval."""
    return f" [{', '.join(map(number, estimate.ends))}]" if estimate.ends else ""


def places(tests: Iterable[LossTest], unit: str) -> int:
    """Return the decimals of differences of losses in a table: the most that the interval of any of them leaves."""
    found = [test for test in tests if test.difference]
    fine = [3 if unit or not test.margin else max(4, 1 - math.floor(math.log10(test.margin))) for test in found]
    return max((decimals(test.difference, each) for test, each in zip(found, fine, strict=True)), default=3)


def difference(value: float, test: LossTest, unit: str, sign: str = "+", digits: int | None = None) -> str:
    """Return a difference of losses without their unit, with so many decimals, or as its interval leaves."""
    return loss_gap(value, unit, sign, places([test], unit) if digits is None else digits)


def difference_text(test: LossTest, unit: str, *, ends: bool = True, digits: int | None = None) -> str:
    """Return a difference of losses with its interval: `-0.0096 [-0.0097, -0.0095]`; "" if unknown."""
    found = test.difference
    if found is None:
        return ""
    known = interval(found, lambda end: difference(end, test, unit, "-", digits)) if ends else ""
    return f"{difference(found.value, test, unit, digits=digits)}{known}"


def decimals(estimate: Estimate | None, otherwise: int) -> int:
    """Return the decimals that an interval leaves: two digits of its half width, at most 4."""
    low, high = (estimate and estimate.ends) or (0.0, 0.0)
    if high <= low:
        return otherwise
    return min(max(4, otherwise), max(0, 1 - math.floor(math.log10((high - low) / 2))))


def field_text(value: object) -> str:
    """Return the value of a field of a configuration; empty if it is not set."""
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return shell_line(value)
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def intervals(among: int) -> str:
    """Return what the intervals of so many comparisons hold for."""
    if among > 1:
        return f"95 % intervals, corrected for {among} comparisons at once"
    return "95 % intervals, for this comparison alone; more at once make them wider"


def loss_gap(value: float, unit: str, sign: str = "+", decimals: int | None = None) -> str:
    """Return the difference of losses, without their unit; a script's own may be tiny, or huge."""
    if decimals is None and not unit and abs(value) < 0.001:
        return f"{value:{sign}.1g}"
    if abs(value) >= LARGE_LOSS:
        return figure(value, sign=sign)
    return f"{round(value, decimals or 3) + 0.0:{sign}.{decimals or 3}f}"


def loss_verdict(test: LossTest) -> str:
    """Return the result of a comparison of losses, with its margin or the reason for no result."""
    if test.reason:
        return f"{words(test.verdict)}: {test.reason}"
    most = max(map(abs, (test.difference and test.difference.ends) or (0.0,)))
    within = f" within {loss_gap(most, '', '')}" if test.verdict is Standing.EQUAL and most else ""
    return f"{test.verdict}{within} (margin {loss_gap(test.margin, '', '')})"
