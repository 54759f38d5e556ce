"""Whether a condition may be relied on: that it runs, and that it learns no worse than the baseline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dscampaign.db.states import UNSETTLED_RUN, RunState
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.report.measure.run import MeasuredRun

from .baseline import BaselineComparison
from .conditions import Condition
from .statistics import Sameness
from .wording import loss_gap

MEMORY_SHARE: Final = 0.92
"""Of the usable memory, on every rank: above it the allocator begins to retry."""

_ENDS: Final = {
    RunState.COMPLETED: ("completed early", "completed early"),
    RunState.FAILED: ("failed", "failed"),
    RunState.HELD: ("is held", "are held"),
    RunState.CANCELLED: ("was cancelled", "were cancelled"),
    RunState.SCREENED: ("was screened out", "were screened out"),
}
"""How a run that is settled and of no use ended; of several."""


def unfit(one: BaselineComparison) -> str:
    """Return the reason that a condition may not be chosen, at any speed; empty if it may."""
    return infeasible(one.condition) or _unequal(one)


def infeasible(condition: Condition) -> str:
    """Return the reason that a condition cannot be relied on to run; empty if it can."""
    if is_unfinished(condition):
        return "it is not finished"
    failed = [run for run in condition.runs if not run.completed]
    if failed:
        return _ends(failed, len(condition.runs)) + (f": {failed[0].reason}" if failed[0].reason else "")
    if any(run.changed for run in condition.runs):
        return "it ran out of memory as configured; a retry changed it"
    return _strained(condition)


def _ends(failed: Sequence[MeasuredRun], repeats: int) -> str:
    """How runs ended that are of no use: `it failed`, `2 of 3 repeats failed, 1 was cancelled`."""
    if len(failed) == repeats and _are_screened(failed):
        return "it was screened out"
    parts: list[str] = []
    for state, number in Counter(run.state for run in failed).items():
        who = "it" if repeats == 1 else f"{number}" if parts else f"{number} of {count(repeats, 'repeat')}"
        parts.append(f"{who} {_ENDS[state][number > 1]}")
    return ", ".join(parts)


def is_screened_out(condition: Condition) -> bool:
    """Return whether the screening left all of it out."""
    return _are_screened(condition.runs)


def _are_screened(runs: Sequence[MeasuredRun]) -> bool:
    return all(run.state is RunState.SCREENED for run in runs)


def is_unfinished(condition: Condition) -> bool:
    """Return whether a repeat is still to come or under way."""
    return any(run.state in UNSETTLED_RUN for run in condition.runs)


def _strained(condition: Condition) -> str:
    """Return the reason that a completed condition may fail or train worse next time; empty if there is none."""
    share = condition.value("mem_share")
    if share is not None and share > MEMORY_SHARE:
        return f"it takes {share:.0%} of the GPU's memory, above {MEMORY_SHARE:.0%}"
    if any(run.quality.alloc_retries for run in condition.runs):
        return "the GPU's allocator had to retry: memory was nearly full"
    if any(run.quality.skipped_steps for run in condition.runs):
        return "it skipped optimizer steps because gradients overflowed"
    return ""


def _unequal(one: BaselineComparison) -> str:
    """Return the reason that a condition may learn worse than the baseline; learning better is fine."""
    test = one.loss
    if test.verdict in (Sameness.EQUIVALENT, Sameness.BETTER):
        return ""
    if test.difference is None:
        return test.reason if test.verdict == Sameness.WORSE else f"equal loss cannot be shown: {test.reason}"
    if test.verdict == Sameness.WORSE:
        return f"its {one.loss_is} loss is worse by {loss_gap(test.difference.value, one.loss_unit, '')}{one.loss_unit}"
    if test.difference.value <= test.margin:  # not shown, but it does not look worse either
        return ""
    seen = f"seen: {loss_gap(test.difference.value, one.loss_unit)}{one.loss_unit}"
    return f"equal {one.loss_is} loss cannot be shown: {test.reason} ({seen})"
