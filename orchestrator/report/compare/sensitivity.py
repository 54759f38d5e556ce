"""The effect of a change of an axis on speed, memory and loss, over all pairs that differ in it alone. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any, Final

from dscampaign.orchestrator.campaign.titles import value_text

from .baseline import BaselineComparison, by_block, compare_losses, compare_speeds, times_as_fast
from .conditions import environment_key, grouped, key_of, unlike
from .statistics import Estimate, Standing, contrast
from .wording import decimals, interval, loss_gap, times

FIELDS: Final = (
    "engine", "zero_stage", "offload", "precision", "compile", "deepcompile", "activation_checkpointing",
    "fused_loss",
)  # fmt: skip
"""Of the strategy, in the order in which they are told; the other axes of the matrix follow."""

_ORDER: Final = (
    "ddp",
    "deepspeed",
    "fsdp2",
    "none",
    "optimizer",
    "full",
    "nvme",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp8",
)
"""Values of the strategy: each costs or saves more than the one before."""

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
    measured = [one for one in comparisons if one.speed or one.losses]
    by_change: dict[tuple[str, str, str], list[tuple[BaselineComparison, BaselineComparison]]] = {}
    for axis in _axes(measured):
        for group in grouped(measured, partial(_others, axis)):
            for cheaper, dearer in _steps(group, axis):
                for before, after in product(cheaper, dearer):
                    if not unlike(before.condition, after.condition):
                        key = (axis, key_of(_value(axis, before)), key_of(_value(axis, after)))
                        by_change.setdefault(key, []).append((before, after))
    return [
        Sensitivity(axis, _value(axis, pairs[0][0]), _value(axis, pairs[0][1]), tuple(pairs))
        for (axis, _, _), pairs in by_change.items()
    ]


def _settings(one: BaselineComparison) -> dict[str, Any]:
    """Return the fields of the trainer and the parameters of the matrix; of a script only the latter count."""
    run = one.condition.runs[0]
    own = {name: value for name, value in run.params.items() if name not in NAMES_POINTS}
    return own if run.config.get("command") else {**own, **run.train}


def _value(axis: str, one: BaselineComparison) -> Any:
    return _settings(one).get(axis)


def _axes(candidates: Sequence[BaselineComparison]) -> list[str]:
    """Return the strategy's fields, and axes of the matrix with numbers or text as values, that vary."""
    settings = [_settings(one) for one in candidates]
    names = dict.fromkeys([*FIELDS, *(name for one in candidates for name in one.condition.params)])
    values = {name: [own.get(name) for own in settings] for name in names if name not in NAMES_POINTS}
    plain = [name for name, own in values.items() if not any(isinstance(value, Mapping) for value in own)]
    return [name for name in plain if len(set(map(key_of, values[name]))) > 1]


def _others(axis: str, one: BaselineComparison) -> list[Any]:
    """Return everything but the axis: also the kind of machine, unless the axis belongs to it."""
    rest = _settings(one)
    of_trainer = axis in FIELDS or (
        axis in one.condition.runs[0].train and not one.condition.runs[0].config.get("command")
    )
    for name in (axis, *_FOLLOWS.get(axis, ())):
        rest.pop(name, None)
    return [rest, environment_key(one.condition) if of_trainer else None]


def _steps(
    group: Sequence[BaselineComparison], axis: str
) -> Iterator[tuple[list[BaselineComparison], list[BaselineComparison]]]:
    """Yield the changes.

    An engine is beside the ZeRO stage that shares most like it: the lowest after `ddp`, the highest before `fsdp2`.
    """
    by_value = grouped(group, partial(_value, axis))
    values = [_value(axis, few[0]) for few in by_value]
    if all(isinstance(value, int | float) for value in values):
        by_value.sort(key=lambda few: _value(axis, few[0]))
    elif axis in FIELDS:
        by_value.sort(key=lambda few: _ORDER.index(value) if (value := _value(axis, few[0])) in _ORDER else -1)
    else:
        yield from ((by_value[0], other) for other in by_value[1:])
        return
    if axis == "engine":
        yield from ((_of_stage(before, max), _of_stage(after, min)) for before, after in pairwise(by_value))
    else:
        yield from pairwise(by_value)


def _of_stage(group: Sequence[BaselineComparison], chosen: Callable[[list[int]], int]) -> list[BaselineComparison]:
    stages = [one.condition.field("zero_stage") or 0 for one in group]
    return [one for one, stage in zip(group, stages, strict=True) if stage == chosen(stages)]


def change_in_words(change: Sensitivity) -> str:
    """`zero_stage 1 → 2`."""
    return f"{change.field} {_word(change.before)} → {_word(change.after)}"


def _word(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    return value_text(value)


def speed_change(change: Sensitivity) -> Estimate | None:
    """Return the speed with the change as a multiple of that without: of several pairs their geometric mean."""
    timed = [(before, after) for before, after in change.pairs if times_as_fast(after, before)]
    if len(timed) < 2:
        return times_as_fast(timed[0][1], timed[0][0]) if timed else None
    share = 1.0 / len(timed)
    cells = weights_of(cell for before, after in timed for cell in ((after, share), (before, -share)))
    speeds, spent = by_block([one for one, _ in cells])
    weighted = tuple((own, weight) for own, (_, weight) in zip(speeds, cells, strict=True))
    return contrast(weighted, among=timed[0][0].among, spent=spent)


def speed_effect(change: Sensitivity) -> str:
    """Return `1.20 [1.10, 1.30] × the speed`; of several pairs their mean and range; "" if unknown."""
    if {compare_speeds(after, before) for before, after in change.pairs} == {Standing.EQUAL}:
        return "as fast"
    mean = speed_change(change)
    each = [f"{factor.value:.2f}" for a, b in change.pairs if (factor := times_as_fast(b, a))]
    low, high = (min(each, key=float), max(each, key=float)) if each else ("", "")
    return f"{times(mean)} × the speed{f' ({low} to {high})' if low != high else ''}" if mean else ""


def weights_of(cells: Iterable[tuple[BaselineComparison, float]]) -> list[tuple[BaselineComparison, float]]:
    """Each condition once, with the sum of its weights: in several pairs it has the same repeats, and the same luck."""
    by_name: dict[str, tuple[BaselineComparison, float]] = {}
    for one, weight in cells:
        _, before = by_name.get(one.condition.name, (one, 0.0))
        by_name[one.condition.name] = one, before + weight
    return list(by_name.values())


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
    kind, unit = f"{change.pairs[0][0].loss_is} loss", change.pairs[0][0].loss_unit
    if all(test.verdict == Standing.EQUAL for test in tests):
        return f"equal {kind}"

    def number(gap: float) -> str:
        return loss_gap(gap, unit, decimals=decimals(mean, 3) if unit else None)

    each = [number(test.difference.value) for test in tests if test.difference]
    low, high = min(each, key=float), max(each, key=float)
    return f"{kind} {number(mean.value)}{interval(mean, number)}{unit}{f' ({low} to {high})' if low != high else ''}"


def loss_change(change: Sensitivity) -> Estimate | None:
    """Return the mean difference of the losses over all pairs, with its interval over repeats with the same seed."""
    both = [(dict(before.losses), dict(after.losses)) for before, after in change.pairs]
    shared = set(both[0][0]).intersection(*(losses for pair in both for losses in pair))
    gaps = tuple(sum(after[seed] - before[seed] for before, after in both) / len(both) for seed in sorted(shared))
    return contrast(((gaps, 1.0),), additive=True, among=change.pairs[0][0].among)


def proofs(change: Sensitivity) -> dict[str, bool]:
    """Return whether the effects on speed and on the loss are proven in each pair, if they were measured."""
    timed = [(before, after) for before, after in change.pairs if before.speeds and after.speeds]
    tests = [test for before, after in change.pairs if (test := compare_losses(after, before)).difference]
    orders = [compare_speeds(after, before) for before, after in timed]
    verdicts_of = {"speed": orders, "loss": [test.verdict for test in tests]}
    return {figure: Standing.NOT_PROVEN not in verdicts for figure, verdicts in verdicts_of.items() if verdicts}


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
