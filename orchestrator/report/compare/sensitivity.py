"""How sensitive speed and memory are to one change of the strategy, over all pairs that differ in it alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final

from .baseline import BaselineComparison
from .conditions import environment_key, grouped
from .statistics import Order, order, ratio
from .wording import times

FIELDS: Final = (
    "engine", "zero_stage", "offload", "precision", "compile", "deepcompile", "activation_checkpointing", "fused_loss",
)  # fmt: skip
"""Of the strategy, in the order in which they are told."""

_STEPS: Final[dict[str, tuple[object, ...]]] = {
    "engine": ("ddp", "deepspeed"),
    "zero_stage": (0, 1, 2, 3),
    "offload": ("none", "optimizer", "full", "nvme"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
}
"""Each value costs or saves more than the one before; all others are switches."""

_SWITCH: Final = (False, True)
_FOLLOWS: Final = {"engine": {"zero_stage"}, "offload": {"nvme_path"}}
"""What changes with a field: without DeepSpeed's engine there is no ZeRO, and without a disk no folder on it."""

LEAST_GB: Final = 0.1


@dataclass(frozen=True)
class Sensitivity:
    """One change of a field, and the pairs of conditions that differ in it alone, each without and with the change."""

    field: str
    before: object
    after: object
    pairs: tuple[tuple[BaselineComparison, BaselineComparison], ...]


def sensitivities(comparisons: Sequence[BaselineComparison]) -> list[Sensitivity]:
    """Every change of one field of the strategy that was measured, from each value to the next that there is."""
    known = [one for one in comparisons if one.speed]
    found: dict[tuple[str, str, str], list[tuple[BaselineComparison, BaselineComparison]]] = {}
    for field in FIELDS:
        for group in _alike(known, field):
            for cheaper, dearer in pairwise(_by_value(group, field)):
                for before, after in product(cheaper, dearer):
                    key = (field, _value(before, field), _value(after, field))
                    found.setdefault(key, []).append((before, after))
    return [
        Sensitivity(field, pairs[0][0].condition.field(field), pairs[0][1].condition.field(field), tuple(pairs))
        for (field, _, _), pairs in found.items()
    ]


def sensitivity_sentence(change: Sensitivity) -> str:
    """The sensitivity in words: over one pair with its interval, over several as a range."""
    what = f"{change.field} {_word(change.before)} → {_word(change.after)}"
    return f"{what}: {_speed(change)}{_memory(change)} ({_which(change)})."


def _alike(comparisons: Sequence[BaselineComparison], field: str) -> Iterator[list[BaselineComparison]]:
    """Conditions that differ in nothing but the field, in groups of at least two: also on the same kind of machine."""
    varied = {"strategy", field} | _FOLLOWS.get(field, set())

    def rest(one: BaselineComparison) -> list[Any]:
        train = one.condition.runs[0].train
        return [{name: value for name, value in train.items() if name not in varied}, environment_key(one.condition)]

    yield from (group for group in grouped(comparisons, rest) if len(group) > 1)


def _by_value(group: Sequence[BaselineComparison], field: str) -> list[list[BaselineComparison]]:
    """The group by its values of the field, from the first to the last; of an engine only the lowest ZeRO stage."""
    values = _STEPS.get(field, _SWITCH)
    found: dict[int, list[BaselineComparison]] = {}
    for one in group:
        value = one.condition.field(field)
        found.setdefault(values.index(value) if value in values else 0, []).append(one)
    ordered = [found[place] for place in sorted(found)]
    return [_lowest_stage(alike) for alike in ordered] if field == "engine" else ordered


def _lowest_stage(group: Sequence[BaselineComparison]) -> list[BaselineComparison]:
    stages = [one.condition.field("zero_stage") or 0 for one in group]
    return [one for one, stage in zip(group, stages, strict=True) if stage == min(stages)]


def _value(one: BaselineComparison, field: str) -> str:
    return json.dumps(one.condition.field(field), default=str)


def _word(value: Any) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _speed(change: Sensitivity) -> str:
    found = [one for a, b in change.pairs if (one := ratio(b.speeds, a.speeds))]
    verdicts = {order(after.speeds, before.speeds) for before, after in change.pairs}
    values = sorted(one.value for one in found)
    if verdicts == {Order.TIE}:
        return "as fast"
    if len(values) > 1:
        return f"{values[0]:.2f} to {values[-1]:.2f} × the speed"
    return f"{times(found[0])} × the speed"


def _memory(change: Sensitivity) -> str:
    saved = []
    for before, after in change.pairs:
        one, other = (each.condition.value("mem_reserved_gb") for each in (before, after))
        if one is not None and other is not None:
            saved.append(other - one)
    if not saved or max(map(abs, saved)) < LEAST_GB:
        return ""
    low, high = min(saved), max(saved)
    return f", {low:+.1f} GB" if high - low < LEAST_GB else f", {low:+.1f} to {high:+.1f} GB"


def _which(change: Sensitivity) -> str:
    (before, after), *more = change.pairs
    names = f"{before.condition.name} → {after.condition.name}"
    repeats = min(len(one.speeds) for pair in change.pairs for one in pair)
    others = f" and {len(more)} more" if more else ""
    unclear = any(order(b.speeds, a.speeds) == Order.INCONCLUSIVE for a, b in change.pairs)
    doubt = "; one repeat" if repeats == 1 else "; inconclusive" if unclear else ""
    return f"{names}{others}{doubt}"
