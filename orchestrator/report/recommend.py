"""Which configuration to use: feasible, then as good as the baseline, then fastest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..status import LIVE
from .conditions import Condition
from .judge import Judged
from .statistics import LEAST_REPEATS, TIE, Order, Sameness, order, ratio

MEMORY_SHARE: Final = 0.92
"""Of the usable memory, on every rank: above it the allocator begins to retry."""


@dataclass(frozen=True)
class Recommendation:
    """What to use, and why not the others.

    Attributes:
        chosen: None where no condition may be recommended.
        established: the repeats suffice for the claim that it is the fastest, or as fast as ``tied``.
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


def recommend(judged: Sequence[Judged]) -> Recommendation:
    """Chooses among conditions that were measured beside the same baseline.

    Speeds that tie are decided by memory, then by the lower ZeRO stage, then by joules per token.
    """
    excluded = {one.condition.name: why for one in judged if (why := infeasible(one.condition) or _unequal(one))}
    left = [one for one in judged if one.condition.name not in excluded and one.speed]
    if not left:
        return Recommendation(None, False, (), excluded, (), _nothing(judged, excluded))
    fastest = max(left, key=lambda one: one.speed.value if one.speed else 0.0)
    tied = [one for one in left if _ties(one, fastest)]
    chosen = min(tied, key=_thrift)
    established = all(len(one.condition.speeds) >= LEAST_REPEATS for one in left)
    others = tuple(one.condition.name for one in tied if one is not chosen)
    return Recommendation(
        chosen=chosen.condition,
        established=established,
        tied=others,
        excluded=excluded,
        front=_front(left),
        sentence=_sentence(chosen, others, len(left), established=established),
    )


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


def _unequal(one: Judged) -> str:
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


def _ties(one: Judged, fastest: Judged) -> bool:
    if one is fastest:
        return True
    found = order(one.condition.speeds, fastest.condition.speeds)
    if found != Order.NOT_ESTABLISHED:
        return found == Order.TIE
    seen = ratio(one.condition.speeds, fastest.condition.speeds)
    return seen is not None and seen.value > 1.0 - TIE


def _thrift(one: Judged) -> tuple[float, int, float]:
    condition = one.condition
    memory = condition.highest(lambda run: run.memory.reserved)
    energy = condition.median(lambda run: run.gpus.j_per_token)
    stage = condition.field("zero_stage")
    rough = float("inf") if memory is None else round(memory, 1)
    return rough, stage if isinstance(stage, int) else 0, energy.value if energy else float("inf")


def _front(left: Sequence[Judged]) -> tuple[str, ...]:
    points = {one.condition.name: _point(one) for one in left}
    names = [name for name, point in points.items() if not any(_beats(other, point) for other in points.values())]
    return tuple(sorted(names, key=lambda name: points[name][0]))


def _point(one: Judged) -> tuple[float, float, float]:
    """What is to be small: time, memory, energy; what nobody knows counts as equal."""
    memory = one.condition.highest(lambda run: run.memory.reserved)
    energy = one.condition.median(lambda run: run.gpus.j_per_token)
    return 1.0 / one.speed.value if one.speed else float("inf"), memory or 0.0, energy.value if energy else 0.0


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and one != other


def _sentence(chosen: Judged, tied: Sequence[str], compared: int, *, established: bool) -> str:
    name = chosen.condition.name
    if compared == 1:
        why = "the only configuration that is feasible and as good as the baseline"
    elif tied:
        why = f"as fast as {_listed(tied)}, and needs least"
    else:
        why = f"the fastest of {compared} configurations that are feasible and as good as the baseline"
    gain = "" if chosen.is_baseline or not chosen.times_baseline else f" ({chosen.times_baseline.value:.2f} × baseline)"
    doubt = "" if established else f" Not established: that takes {LEAST_REPEATS} repeats of each (`repeats:`)."
    return f"Use {name}{gain}: {why}.{doubt}"


def _nothing(judged: Sequence[Judged], excluded: dict[str, str]) -> str:
    if not judged:
        return "There is nothing to recommend yet: no run has figures."
    name, why = next(iter(excluded.items()), ("", "no run has completed with its speed known"))
    return f"Nothing can be recommended: {f'{name}: ' if name else ''}{why}."


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
