"""Exclude conditions that cannot be relied on, and rank the others by speed, loss and need of memory. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from dscampaign.db.states import RunState
from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.objective import Objective

from .baseline import BaselineComparison, compare_losses, compare_speeds, times_as_fast
from .conditions import Condition, is_unfinished
from .reasons import Reason, Why
from .statistics import TIE, Standing, estimate

MEMORY_SHARE: Final = 0.92
"""Of the usable memory, on every rank: above it the allocator begins to retry."""

_ENDS: Final = {
    RunState.COMPLETED: "ended early",
    RunState.FAILED: "failed",
    RunState.HELD: "held",
    RunState.CANCELLED: "cancelled",
    RunState.SCREENED: "screened out",
    RunState.PRUNED: "pruned",
}
"""How a run that is settled and of no use ended."""
_FAILED: Final = {"crash": "crashed", "deterministic": "crashed", "diverged": "diverged"}


def unfit(one: BaselineComparison, lead: Objective = Objective.SPEED) -> Reason | None:
    """Return the reason that a condition may not be chosen; if loss leads, a higher loss is no reason."""
    if (reason := infeasible(one.condition)) or lead is not Objective.LOSS:
        return reason or _unequal(one)
    if not all(math.isfinite(loss) for _, loss in one.losses):
        return Reason(Why.LOSS_NOT_FINITE)
    return None if one.losses else Reason(Why.NO_LOSSES, (one.condition.title,))


def infeasible(condition: Condition) -> Reason | None:
    """Return the reason that a condition cannot be relied on to run; None if it can."""
    if is_unfinished(condition):
        return Reason(Why.UNFINISHED)
    if failed := [run for run in condition.runs if not run.completed]:
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
    """Return the change that a retry made; "" without a change."""
    if run.micro_batch != run.first_micro_batch:
        return f"micro-batch {run.micro_batch} instead of {run.first_micro_batch}"
    return run.changes


def _strained(condition: Condition) -> Reason | None:
    """Return the reason that a completed condition may fail or train worse next time."""
    share = condition.value("mem_share")
    if share is not None and share > MEMORY_SHARE:
        return Reason(Why.TIGHT, number=share, detail=f"{MEMORY_SHARE:.0%}")
    if any(run.quality.alloc_retries for run in condition.runs):
        return Reason(Why.ALLOCATOR)
    return Reason(Why.OVERFLOW) if any(run.quality.skipped_steps for run in condition.runs) else None


def _unequal(one: BaselineComparison) -> Reason | None:
    """Return the reason that a condition may learn worse than the baseline; learning better is fine."""
    test = one.loss
    if test.verdict in (Standing.EQUAL, Standing.BETTER):
        return None
    if test.difference is None:
        return Reason(Why.LOSS_NOT_FINITE if test.verdict is Standing.WORSE else Why.NO_LOSSES, (one.condition.title,))
    if test.difference.value <= test.margin and test.verdict is not Standing.WORSE:
        return None
    code = Why.LOSS_WORSE if test.verdict is Standing.WORSE else Why.LOSS_UNPROVEN
    return Reason(code, number=test.difference.value, unit=one.loss_unit, detail=one.loss_is)


def fastest_of(left: Sequence[BaselineComparison], lead: Objective = Objective.SPEED) -> BaselineComparison:
    """Return the condition to use of all that no other is faster than: ties are not transitive.

    A condition that is proven to learn better than the thriftiest of them comes first: it costs no speed. If loss
    leads, the baseline decides nothing.
    """
    able = [one for one in left if not any(faster(other, one) for other in left)]
    if lead is not Objective.LOSS:
        able = [one for one in able if not may_be_worse(one)] or able

    def thriftiest(some: Sequence[BaselineComparison]) -> BaselineComparison:
        return min(some, key=lambda one: (*_thrift(one), -pace(one)))

    return thriftiest(best_learners(able, thriftiest(able)))


def best_learners(left: Sequence[BaselineComparison], fastest: BaselineComparison) -> list[BaselineComparison]:
    """Return conditions that learn better than the fastest and no worse than the best of them; else all."""
    better = [one for one in left if compare_losses(one, fastest).verdict == Standing.BETTER]
    if not better:
        return list(left)
    best = min(better, key=median_loss)
    return [one for one in better if compare_losses(one, best).verdict is not Standing.WORSE]


def may_be_worse(one: BaselineComparison) -> bool:
    """Return whether it has the repeats, and yet they do not show that it learns as well as the baseline."""
    difference = one.loss.difference
    return bool(difference and difference.low is not None) and not one.loss.no_worse


def median_loss(one: BaselineComparison) -> float:
    """Return the median loss in nats over its repeats; infinite if unknown."""
    median = estimate([loss for _, loss in one.losses])
    return median.value if median else math.inf


def pace(one: BaselineComparison) -> float:
    """Return its speed, or its score by an objective; 0 if no step was timed."""
    return one.speed.value if one.speed else 0.0


def faster(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Return whether it is faster, or looks faster while nothing is proven."""
    if pace(one) <= pace(other) or (pace(other) and pace(one) / pace(other) - 1.0 < TIE):
        return False
    standing = compare_speeds(one, other)
    unclear = standing is Standing.NOT_PROVEN
    return pace(one) * (1.0 - TIE) >= pace(other) if unclear else standing is Standing.FASTER


def faster_out(
    chosen: BaselineComparison, comparisons: Sequence[BaselineComparison], out: Mapping[str, Reason]
) -> Reason | None:
    """Return a faster condition that is out: the fastest, or first the fastest whose loss may be as low."""
    ahead = [(one, out[one.condition.name]) for one in comparisons if one.condition.name in out and faster(one, chosen)]
    if not ahead:
        return None
    found, why = max(ahead, key=lambda each: (each[1].code is Why.LOSS_UNPROVEN, pace(each[0])))
    code = Why.FASTER_UNPROVEN if why.code is Why.LOSS_UNPROVEN else Why.FASTER_OUT
    detail = why.label if why.code in (Why.LOSS_UNPROVEN, Why.LOSS_WORSE) else f"out: {why.label}"
    speed = times_as_fast(found, chosen)
    return Reason(code, (found.condition.title,), number=speed.value if speed else None, detail=detail)


def needs_least(chosen: BaselineComparison, tied: Sequence[BaselineComparison]) -> bool:
    """Return whether it takes less memory than each of these; ties are not transitive, so another may take less."""
    own, *others = (one.condition.value("mem_reserved_gb") for one in (chosen, *tied))
    return own is not None and all(other is not None and own < other for other in others)


def _thrift(one: BaselineComparison) -> tuple[float, int, float]:
    memory, energy = (one.condition.value(metric) for metric in ("mem_reserved_gb", "j_per_token"))
    stage = 3 if one.condition.field("engine") == "fsdp2" else one.condition.field("zero_stage")
    rough = math.inf if memory is None else round(memory, 1)
    return rough, stage if isinstance(stage, int) else 0, math.inf if energy is None else energy
