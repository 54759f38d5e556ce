"""Which condition learned best, and how sure that is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...formatting import some
from .baseline import BaselineComparison
from .statistics import Sameness, loss_test


def best_learner(workload: str, comparisons: Sequence[BaselineComparison]) -> str:
    """Which condition came to the lowest loss, and which cannot be told apart from it; "" where there is no choice.

    Args:
        workload: its name, "" for the only one.
        comparisons: of its conditions.
    """
    where = f"{workload}: " if workload else ""
    known = [each for each in comparisons if each.losses and math.isfinite(_mean(each))]
    if len(known) < 2:
        return ""
    best = min(known, key=_mean)
    if len({f"{_mean(each):.4f}" for each in known}) == 1:
        return f"{where}all conditions came to the same {best.loss_is} loss, {_mean(best):.4f}."
    tests = {each.condition.name: loss_test(each.losses, best.losses) for each in known if each is not best}
    near = [name for name, test in tests.items() if test.verdict != Sameness.WORSE]
    said = f"{where}{best.condition.name} came to the lowest {best.loss_is} loss, {_mean(best):.4f}"
    if not near:
        return f"{said}; all others are established as worse."
    if len(near) == len(tests):
        return f"{said}; no other is established as worse."
    return f"{said}; not established as worse: {some(near)}."


def _mean(one: BaselineComparison) -> float:
    return statistics.fmean(loss for _, loss in one.losses)
