"""The effect of a change of an axis on speed, memory and loss, over all pairs that differ in it alone. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from typing import Any, Final

from .baseline import BaselineComparison, by_round, compare_losses, compare_speeds, times_as_fast
from .conditions import environment_key, grouped, unlike
from .statistics import Estimate, Standing, contrast
from .wording import decimals, interval, loss_gap, times

FIELDS: Final = (
    "engine", "zero_stage", "offload", "precision", "compile", "deepcompile", "cuda_graphs", "activation_checkpointing",
    "fused_loss",
)  # fmt: skip
"""Of the strategy, in the order in which they are told; the other axes of the matrix follow."""

_STEPS: Final[dict[str, tuple[object, ...]]] = {
    "engine": ("ddp", "deepspeed", "fsdp2"),
    "zero_stage": (0, 1, 2, 3),
    "offload": ("none", "optimizer", "full", "nvme"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
}
"""Each value costs or saves more than the one before; all others are switches."""

_SWITCH: Final = (False, True)
_FOLLOWS: Final = {"engine": {"zero_stage"}, "offload": {"nvme_path"}}
"""What changes with a field: without DeepSpeed's engine there is no ZeRO, and without a disk no folder on it."""

LEAST_GB: Final = 0.1

NAMES_POINTS: Final = ("label", "strategy")
"""Axes that name a point of the matrix, or several fields at once: what they stand for is told instead."""


@dataclass(frozen=True)
class Sensitivity:
    """A change of a field, and the pairs of conditions that differ in it alone, each without and with the change."""

    field: str
    before: object
    after: object
    pairs: tuple[tuple[BaselineComparison, BaselineComparison], ...]


def sensitivities(comparisons: Sequence[BaselineComparison]) -> list[Sensitivity]:
    """Return every measured change of an axis, on the same devices unless the axis decides on them.

    Numbers and the fields of the strategy go from each value to the next, other values from the first to each.
    """
    known = [one for one in comparisons if one.speed or one.losses]
    found: dict[tuple[str, str, str], list[tuple[BaselineComparison, BaselineComparison]]] = {}
    for field in dict.fromkeys([*FIELDS, *_other_axes(known)]):
        for group in _alike(known, field):
            for cheaper, dearer in _steps(_by_value(group, field), field):
                for before, after in product(cheaper, dearer):
                    if unlike(before.condition, after.condition):
                        continue
                    key = (field, value_key(before, field), value_key(after, field))
                    found.setdefault(key, []).append((before, after))
    return [
        Sensitivity(field, _value(pairs[0][0], field), _value(pairs[0][1], field), tuple(pairs))
        for (field, _, _), pairs in found.items()
    ]


def _other_axes(comparisons: Sequence[BaselineComparison]) -> Iterator[str]:
    """Yield axes with numbers or text as values: no labels, which name points, and no structures."""
    for name in dict.fromkeys(name for one in comparisons for name in one.condition.params):
        structures = any(isinstance(one.condition.field(name), Mapping) for one in comparisons)
        if name not in NAMES_POINTS and not structures:
            yield name


def change_in_words(change: Sensitivity) -> str:
    """`zero_stage 1 → 2`."""
    return f"{change.field} {_word(change.before)} → {_word(change.after)}"


def _is_of_script(one: BaselineComparison, field: str) -> bool:
    """Return whether the field is the machine's, or part of a script's command: then only the parameters have it."""
    run = one.condition.runs[0]
    return field not in FIELDS and (field not in run.train or bool(run.config.get("command")))


def _alike(comparisons: Sequence[BaselineComparison], field: str) -> Iterator[list[BaselineComparison]]:
    """Conditions that differ in nothing but the field, in groups of at least two: also on the same kind of machine."""
    varied = {"strategy", field} | _FOLLOWS.get(field, set())

    def rest(one: BaselineComparison) -> list[Any]:
        train = one.condition.runs[0].train
        if _is_of_script(one, field):
            return [{name: value for name, value in one.condition.params.items() if name not in (field, "label")}]
        return [{name: value for name, value in train.items() if name not in varied}, environment_key(one.condition)]

    yield from (group for group in grouped(comparisons, rest) if len(group) > 1)


def _by_value(group: Sequence[BaselineComparison], field: str) -> list[list[BaselineComparison]]:
    if field not in FIELDS:
        alike = grouped(group, lambda one: _value(one, field))
        return sorted(alike, key=lambda few: _value(few[0], field)) if _are_numbers(alike, field) else alike
    values = _STEPS.get(field, _SWITCH)
    found: dict[int, list[BaselineComparison]] = {}
    for one in group:
        value = one.condition.field(field)
        found.setdefault(values.index(value) if value in values else 0, []).append(one)
    return [found[place] for place in sorted(found)]


def _steps(
    ordered: list[list[BaselineComparison]], field: str
) -> Iterator[tuple[list[BaselineComparison], list[BaselineComparison]]]:
    """Yield the changes: text has no order, so its changes start from the first value.

    An engine is beside the ZeRO stage that shares most like it: the lowest after `ddp`, the highest before `fsdp2`.
    """
    if field == "engine":
        yield from ((_of_stage(before, max), _of_stage(after, min)) for before, after in pairwise(ordered))
    elif field in FIELDS or _are_numbers(ordered, field):
        yield from pairwise(ordered)
    else:
        yield from ((ordered[0], other) for other in ordered[1:])


def _are_numbers(groups: Sequence[Sequence[BaselineComparison]], field: str) -> bool:
    return all(isinstance(_value(group[0], field), int | float) for group in groups)


def _of_stage(group: Sequence[BaselineComparison], chosen: Callable[[list[int]], int]) -> list[BaselineComparison]:
    stages = [one.condition.field("zero_stage") or 0 for one in group]
    return [one for one, stage in zip(group, stages, strict=True) if stage == chosen(stages)]


def _value(one: BaselineComparison, field: str) -> Any:
    return one.condition.params.get(field) if _is_of_script(one, field) else one.condition.field(field)


def value_key(one: BaselineComparison, field: str) -> str:
    """Return a condition's value of a field as text, by default the field's default."""
    return json.dumps(_value(one, field), default=str)


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def speed_change(change: Sensitivity) -> Estimate | None:
    """Return the speed with the change as a multiple of that without: of several pairs their geometric mean."""
    timed = [(before, after) for before, after in change.pairs if times_as_fast(after, before)]
    if len(timed) < 2:
        return times_as_fast(timed[0][1], timed[0][0]) if timed else None
    share = 1.0 / len(timed)
    cells = weights_of(cell for before, after in timed for cell in ((after, share), (before, -share)))
    speeds, paired = by_round([one for one, _ in cells])
    weights = [weight for _, weight in cells]
    return contrast(list(zip(speeds, weights, strict=True)), among=timed[0][0].among, paired=paired)


def speed_effect(change: Sensitivity) -> str:
    """Return `1.20 [1.10, 1.30] × the speed`; of several pairs their mean and range; "" if unknown."""
    if {compare_speeds(after, before) for before, after in change.pairs} == {Standing.EQUAL}:
        return "as fast"
    mean = speed_change(change)
    each = [f"{found.value:.2f}" for a, b in change.pairs if (found := times_as_fast(b, a))]
    low, high = (min(each, key=float), max(each, key=float)) if each else ("", "")
    return f"{times(mean)} × the speed{f' ({low} to {high})' if low != high else ''}" if mean else ""


def weights_of(cells: Iterable[tuple[BaselineComparison, float]]) -> list[tuple[BaselineComparison, float]]:
    """Each condition once, with the sum of its weights: in several pairs it has the same repeats, and the same luck."""
    found: dict[str, tuple[BaselineComparison, float]] = {}
    for one, weight in cells:
        _, before = found.get(one.condition.name, (one, 0.0))
        found[one.condition.name] = one, before + weight
    return list(found.values())


def memory_change(change: Sensitivity) -> list[float]:
    """Return the difference in reserved memory of each pair, in GB."""
    both = [[one.condition.value("mem_reserved_gb") for one in pair] for pair in change.pairs]
    return [after - before for before, after in both if before is not None and after is not None]


def memory_effect(change: Sensitivity) -> str:
    """Return `+1.2 GB`; "" if unknown."""
    saved = memory_change(change)
    if not saved:
        return ""
    if max(map(abs, saved)) < LEAST_GB:
        return "the same memory"
    low, high = min(saved), max(saved)
    return f"{low:+.1f} GB" if high - low < LEAST_GB else f"{low:+.1f} to {high:+.1f} GB"


def loss_effect(change: Sensitivity) -> str:
    """Return how far the losses are apart; equal if that is shown of every pair."""
    tests = [compare_losses(after, before) for before, after in change.pairs]
    mean = loss_change(change)
    if not mean:
        return ""
    what, unit = f"{change.pairs[0][0].loss_is} loss", change.pairs[0][0].loss_unit
    if all(test.verdict == Standing.EQUAL for test in tests):
        return f"equal {what}"

    def number(gap: float) -> str:
        return loss_gap(gap, unit, decimals=decimals(mean, 3) if unit else None)

    each = [number(test.difference.value) for test in tests if test.difference]
    low, high = min(each, key=float), max(each, key=float)
    return f"{what} {number(mean.value)}{interval(mean, number)}{unit}{f' ({low} to {high})' if low != high else ''}"


def loss_change(change: Sensitivity) -> Estimate | None:
    """Return the mean difference of the losses over all pairs, with its interval over repeats with the same seed."""
    both = [(dict(before.losses), dict(after.losses)) for before, after in change.pairs]
    shared = set(both[0][0]).intersection(*(losses for pair in both for losses in pair))
    gaps = [sum(after[seed] - before[seed] for before, after in both) / len(both) for seed in sorted(shared)]
    return contrast([(gaps, 1.0)], additive=True, among=change.pairs[0][0].among)


def proofs(change: Sensitivity) -> dict[str, bool]:
    """Return whether the effects on speed and on the loss are proven in each pair, if they were measured."""
    timed = [(before, after) for before, after in change.pairs if before.speeds and after.speeds]
    tests = [test for before, after in change.pairs if (test := compare_losses(after, before)).difference]
    orders = [compare_speeds(after, before) for before, after in timed]
    found = {"speed": orders, "loss": [test.verdict for test in tests]}
    return {figure: Standing.NOT_PROVEN not in verdicts for figure, verdicts in found.items() if verdicts}


def effect_document(change: Sensitivity) -> dict[str, Any]:
    """Return an effect as a row of data; differences of memory and of losses are of each pair."""
    tests = [compare_losses(after, before) for before, after in change.pairs]
    speed = speed_change(change)
    return {
        "field": change.field,
        "before": change.before,
        "after": change.after,
        "pairs": [[before.condition.name, after.condition.name] for before, after in change.pairs],
        "speed": asdict(speed) if speed else None,
        "proven": proofs(change),
        "mem_reserved_gb": memory_change(change),
        "loss": [{**asdict(test), "difference": test.difference and asdict(test.difference)} for test in tests],
    }
