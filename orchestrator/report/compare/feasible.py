"""Whether a condition may be relied on: that it runs, and that it learns no worse than the baseline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dscampaign.db.states import UNSETTLED_RUN, RunState
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective

from .baseline import BaselineComparison
from .conditions import Condition
from .reasons import Reason, Why
from .statistics import Standing

MEMORY_SHARE: Final = 0.92
"""Of the usable memory, on every rank: above it the allocator begins to retry."""

_ENDS: Final = {
    RunState.COMPLETED: "ended early",
    RunState.FAILED: "failed",
    RunState.HELD: "held",
    RunState.CANCELLED: "cancelled",
    RunState.SCREENED: "screened out",
}
"""How a run that is settled and of no use ended."""
_FAILED: Final = {"crash": "crashed", "deterministic": "crashed", "diverged": "diverged"}


def unfit(one: BaselineComparison, lead: Objective = Objective.SPEED) -> Reason | None:
    """Return the reason that a condition may not be chosen; if loss leads, a higher loss is no reason."""
    return infeasible(one.condition) or _unequal(one, lead)


def infeasible(condition: Condition) -> Reason | None:
    """Return the reason that a condition cannot be relied on to run; None if it can."""
    if is_unfinished(condition):
        return Reason(Why.UNFINISHED)
    if is_screened_out(condition):
        return Reason(Why.SCREENED, detail=condition.runs[0].reason)
    failed = [run for run in condition.runs if not run.completed]
    if failed:
        kinds = tuple(dict.fromkeys(run.failures[-1].kind for run in failed if run.failures))
        cause = f": {failed[0].reason}" if failed[0].reason else ""
        end = _ends(failed, len(condition.runs))
        return Reason(Why.ENDED, kinds, detail=end + cause, end=end)
    if changed := [run for run in condition.runs if run.changed]:
        return Reason(Why.CHANGED, number=changed[0].micro_batch, detail=change_text(changed[0]))
    return _strained(condition)


def _ends(failed: Sequence[MeasuredRun], repeats: int) -> str:
    """How runs ended that are of no use: `crashed`, `2 of 3 repeats crashed, 1 cancelled`."""
    parts: list[str] = []
    kinds = {run.name: run.failures[-1].kind for run in failed if run.state is RunState.FAILED and run.failures}
    ends = Counter(_FAILED.get(kinds.get(run.name, ""), _ENDS[run.state]) for run in failed)
    for end, number in ends.items():
        who = "" if repeats == 1 else f"{number} " if parts else f"{number} of {count(repeats, 'repeat')} "
        parts.append(f"{who}{end}")
    return ", ".join(parts)


def change_text(run: MeasuredRun) -> str:
    """Return the change that a retry made; "" without one."""
    if run.micro_batch != run.first_micro_batch:
        return f"micro-batch {run.micro_batch} instead of {run.first_micro_batch}"
    return run.changes


def is_screened_out(condition: Condition) -> bool:
    """Return whether the screening left all of it out."""
    return all(run.state is RunState.SCREENED for run in condition.runs)


def is_unfinished(condition: Condition) -> bool:
    """Return whether a repeat is still to come or under way."""
    return any(run.state in UNSETTLED_RUN for run in condition.runs)


def _strained(condition: Condition) -> Reason | None:
    """Return the reason that a completed condition may fail or train worse next time."""
    share = condition.value("mem_share")
    if share is not None and share > MEMORY_SHARE:
        return Reason(Why.TIGHT, number=share, detail=f"{MEMORY_SHARE:.0%}")
    if any(run.quality.alloc_retries for run in condition.runs):
        return Reason(Why.ALLOCATOR)
    return Reason(Why.OVERFLOW) if any(run.quality.skipped_steps for run in condition.runs) else None


def _unequal(one: BaselineComparison, lead: Objective) -> Reason | None:
    """Return the reason that a condition may learn worse than the baseline; learning better is fine."""
    test = one.loss
    if test.verdict in (Standing.EQUAL, Standing.BETTER):
        return None
    if test.difference is None:
        return Reason(Why.LOSS_NOT_FINITE if test.verdict is Standing.WORSE else Why.NO_LOSSES, (one.condition.title,))
    looks_worse = test.difference.value > test.margin or test.verdict is Standing.WORSE
    if lead is Objective.LOSS or not looks_worse:
        return None
    code = Why.LOSS_WORSE if test.verdict is Standing.WORSE else Why.LOSS_UNPROVEN
    return Reason(code, number=test.difference.value, unit=one.loss_unit, detail=one.loss_is)
