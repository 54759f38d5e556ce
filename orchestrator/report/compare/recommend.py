"""Which configuration to use: feasible, then as good as the baseline, then fastest. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...status import LIVE
from .baseline import BaselineComparison
from .conditions import Condition
from .statistics import LEAST_REPEATS, TIE, Order, Sameness, order
from .wording import times

MEMORY_SHARE: Final = 0.92
"""Of the usable memory, on every rank: above it the allocator begins to retry."""


@dataclass(frozen=True)
class Recommendation:
    """What to use, and why not the others.

    Attributes:
        chosen: None where no condition may be recommended.
        established: the repeats suffice for the claim that it learns as well as the baseline and is the fastest, or as
            fast as ``tied``.
        tied: conditions as fast as it.
        excluded: by name, why a condition may not be chosen.
        front: names of conditions that none beats in speed, memory and energy at once, fastest first.
        sentence: all of it in plain words.
    """

    chosen: Condition | None
    established: bool
    tied: tuple[str, ...]
    excluded: dict[str, str]
    front: tuple[str, ...]
    sentence: str


def recommend(judged: Sequence[BaselineComparison]) -> Recommendation:
    """Chooses among conditions that were measured beside the same baseline.

    Speeds that tie are decided by memory, then by the lower ZeRO stage, then by joules per token. What another one is
    faster than is not chosen, nor what another beats in speed, memory and energy at once.
    """
    excluded = {one.condition.name: why for one in judged if (why := _unfit(one))}
    left = [one for one in judged if one.condition.name not in excluded]
    if not left:
        return Recommendation(None, False, (), excluded, (), _nothing(excluded))
    chosen = _choice(left)
    tied = [one for one in left if one is not chosen and _ties(one, chosen)]
    doubts = [*_unfinished(judged), *_doubts(chosen, left)]
    return Recommendation(
        chosen=chosen.condition,
        established=not doubts,
        tied=tuple(one.condition.name for one in tied),
        excluded=excluded,
        front=_front(left),
        sentence=" ".join([_sentence(chosen, tied, left, excluded), *doubts]),
    )


def _choice(left: Sequence[BaselineComparison]) -> BaselineComparison:
    """The thriftiest of those that tie with the fastest and that no other is faster than: a tie is not transitive.

    Memory counts to a tenth of a GB here, so one of those that none beats comes first, as long as there is one.
    """
    by_pace = sorted(left, key=_pace, reverse=True)
    front = _front(left)
    thrifty = sorted((one for one in by_pace if _ties(one, by_pace[0])), key=_thrift)
    able = [one for one in thrifty if not any(_faster(other, one) for other in by_pace)]
    return next((one for one in able if one.condition.name in front), able[0])


def _unfit(one: BaselineComparison) -> str:
    """Why a condition may not be chosen; empty where it may."""
    return infeasible(one.condition) or _unequal(one) or ("" if one.speed else "its speed is not known")


def infeasible(condition: Condition) -> str:
    """Why a condition cannot be relied on to run; empty where it can."""
    if any(run.state in LIVE for run in condition.runs):
        return "it is not finished"
    failed = [run for run in condition.runs if not run.completed]
    if failed:
        word = f"{len(failed)} of {len(condition.runs)} repeats" if len(condition.runs) > 1 else "it"
        return f"{word} ended {failed[0].state}" + (f": {failed[0].reason}" if failed[0].reason else "")
    if any(run.changed for run in condition.runs):
        return "it ran out of memory as configured; a retry changed it"
    return _strained(condition)


def _strained(condition: Condition) -> str:
    """Why what has completed may not do so again, or not as well."""
    share = condition.highest(lambda run: run.memory.share)
    if share is not None and share > MEMORY_SHARE:
        return f"it takes {share:.0%} of the GPU's memory, above {MEMORY_SHARE:.0%}"
    if condition.highest(lambda run: run.quality.alloc_retries):
        return "the GPU's allocator had to retry: memory was nearly full"
    if condition.highest(lambda run: run.quality.skipped_steps):
        return "it skipped optimizer steps because gradients overflowed"
    return ""


def _unequal(one: BaselineComparison) -> str:
    """Why a condition does not learn as well as the baseline, as far as is known; to learn better is no fault."""
    test = one.loss
    if test.verdict in (Sameness.EQUIVALENT, Sameness.BETTER):
        return ""
    if test.difference is None:
        return test.reason if test.verdict == Sameness.WORSE else f"equal loss is not established: {test.reason}"
    highest = test.difference.value if test.difference.high is None else test.difference.high
    if highest <= test.margin:
        return ""
    if test.verdict == Sameness.WORSE:
        return f"its {one.loss_is} loss is worse by {test.difference.value:.3f} nats"
    seen = f"seen: {test.difference.value:+.3f} nats"
    return f"equal {one.loss_is} loss is not established: {test.reason} ({seen})"


def _unfinished(judged: Sequence[BaselineComparison]) -> Iterator[str]:
    waiting = [one.condition.name for one in judged if any(run.state in LIVE for run in one.condition.runs)]
    if waiting:
        verb = "is" if len(waiting) == 1 else "are"
        yield f"Provisional: {_listed(waiting)} {verb} not finished."


def _doubts(chosen: BaselineComparison, left: Sequence[BaselineComparison]) -> Iterator[str]:
    """Why it is not established that the chosen one learns as well, and is as fast as any."""
    if any(len(one.speeds) < LEAST_REPEATS or not _sure(one) for one in left):
        yield f"Not established: that takes {LEAST_REPEATS} repeats of each (`repeats:`)."
        return
    others = (one for one in left if one is not chosen)
    unclear = [one for one in others if order(one.speeds, chosen.speeds) == Order.NOT_ESTABLISHED]
    if unclear:
        names = _listed([one.condition.name for one in unclear])
        yield f"Not established: repeats differ too much to tell it from {names}; more of them would."


def _sure(one: BaselineComparison) -> bool:
    """Whether there are repeats enough to say that it learns as well."""
    return one.loss.difference is not None and one.loss.difference.repeats >= LEAST_REPEATS


def _pace(one: BaselineComparison) -> float:
    return one.speed.value if one.speed else 0.0


def _faster(one: BaselineComparison, other: BaselineComparison) -> bool:
    """Whether it is faster, or looks faster while nothing is established."""
    if _pace(one) <= _pace(other):
        return False
    found = order(one.speeds, other.speeds)
    if found != Order.NOT_ESTABLISHED:
        return found == Order.FASTER
    return _pace(one) * (1.0 - TIE) >= _pace(other)


def _ties(one: BaselineComparison, other: BaselineComparison) -> bool:
    return not _faster(one, other) and not _faster(other, one)


def _thrift(one: BaselineComparison) -> tuple[float, int, float]:
    condition, memory = one.condition, _reserved(one)
    energy = condition.median(lambda run: run.gpus.j_per_token)
    stage = condition.field("zero_stage")
    rough = float("inf") if memory is None else round(memory, 1)
    return rough, stage if isinstance(stage, int) else 0, energy.value if energy else float("inf")


def _reserved(one: BaselineComparison) -> float | None:
    return one.condition.highest(lambda run: run.memory.reserved)


def _needs_least(chosen: BaselineComparison, tied: Sequence[BaselineComparison]) -> bool:
    """Whether it takes less memory than each of these; a tie is not transitive, so one of them may take less."""
    own, others = _reserved(chosen), [_reserved(one) for one in tied]
    return own is not None and all(other is not None and own < other for other in others)


def _front(left: Sequence[BaselineComparison]) -> tuple[str, ...]:
    points = {one.condition.name: _point(one) for one in left}
    names = [name for name, point in points.items() if not any(_beats(other, point) for other in points.values())]
    return tuple(sorted(names, key=lambda name: points[name][0] or 0.0))


_Point = tuple[float | None, float | None, float | None]


def _point(one: BaselineComparison) -> _Point:
    """What is to be small: time, memory, energy; None where nobody knows."""
    energy = one.condition.median(lambda run: run.gpus.j_per_token)
    return 1.0 / _pace(one), _reserved(one), energy.value if energy else None


def _beats(one: _Point, other: _Point) -> bool:
    """Whether it is nowhere worse and somewhere better, in what is known of both."""
    known = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return all(a <= b for a, b in known) and any(a < b for a, b in known)


def _sentence(
    chosen: BaselineComparison,
    tied: Sequence[BaselineComparison],
    left: Sequence[BaselineComparison],
    excluded: Mapping[str, str],
) -> str:
    name = chosen.condition.name
    good = "feasible and learn no worse than the baseline"
    if len(left) == 1:
        why = "the only configuration so far that is feasible and learns no worse than the baseline"
        why = "the baseline; nothing else can be recommended beside it" if chosen.is_baseline else why
        why = why if excluded else "the only configuration"
    elif tied:
        least = ", and needs least" if _needs_least(chosen, tied) else ""
        why = f"as fast as {_listed([one.condition.name for one in tied])}{least}"
    else:
        why = f"the fastest of {len(left)} configurations that are {good}"
    gain = "" if chosen.is_baseline or not chosen.times_baseline else f" ({times(chosen.times_baseline)} × baseline)"
    return f"Use {name}{gain}: {why}."


def _nothing(excluded: dict[str, str]) -> str:
    for name, why in excluded.items():
        return f"Nothing can be recommended: {name}: {why}."
    return "There is nothing to recommend yet: no run has figures."


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
