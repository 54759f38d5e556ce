"""Two conditions beside each other, down to what differs in their configurations. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ..page.elements import Table
from ..page.sections import loss_word
from .baseline import BaselineComparison, compare_to_baseline
from .conditions import Condition
from .wording import difference, values_of

MISSING: Final = "–"


@dataclass(frozen=True)
class Comparison:
    """One condition beside another, which is the baseline.

    Attributes:
        differences: (field of the configuration, left value, right value), by name.
        judged: the right one, judged by the left one.
    """

    left: Condition
    right: Condition
    differences: tuple[tuple[str, str, str], ...]
    judged: BaselineComparison


def compare(left: Condition, right: Condition) -> Comparison:
    """Compares two conditions. Single runs are a pair, whatever their seeds."""
    if len(left.runs) == len(right.runs) == 1 and left is not right:
        right = replace(right, runs=(replace(right.runs[0], repeat=left.runs[0].repeat),))
    _, judged = (
        compare_to_baseline([left, right], left) if left is not right else compare_to_baseline([left, left], left)
    )
    return Comparison(left, right, tuple(differences(left.runs[0].config, right.runs[0].config)), judged)


def pairs(left: Sequence[Condition], right: Sequence[Condition]) -> list[tuple[Condition, Condition]]:
    """Conditions of two campaigns that have the same parameters, in the order of the left one."""
    by_params = {json.dumps(each.params, sort_keys=True, default=str): each for each in right}
    keys = ((each, json.dumps(each.params, sort_keys=True, default=str)) for each in left)
    return [(each, by_params[key]) for each, key in keys if key in by_params]


def differences(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Fields of two configurations that differ, with dots in the names of nested ones."""
    for name in sorted({*left, *right}):
        one, other = left.get(name, _ABSENT), right.get(name, _ABSENT)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from differences(one, other, f"{prefix}{name}.")
        elif one != other:
            yield f"{prefix}{name}", _text(one), _text(other)


def comparison_tables(one: Comparison) -> list[Table]:
    """What differs in the configuration, and the figures."""
    left, right = one.left.name, one.right.name
    if left == right:
        left, right = f"{left} (A)", f"{right} (B)"
    rows = tuple((name, a, b) for name, a, b in one.differences)
    figures = tuple(
        (name, a, b) for (name, a), (_, b) in zip(values_of(one.left), values_of(one.right), strict=True) if a or b
    )
    tables = [Table(("figure", left, right), figures, "-rr")]
    return [Table(("configuration", left, right), rows), *tables] if rows else tables


def verdict(one: Comparison) -> list[str]:
    """What the comparison has shown, in sentences."""
    judged, right, left = one.judged, one.right.name, one.left.name
    said = list(_left_out(one))
    if judged.times_baseline:
        said.append(f"Speed: {right} runs at {judged.times_baseline.value:.3f} × {left}: {judged.order}.")
    if judged.loss.difference:
        said.append(
            f"{judged.loss_is.capitalize()} loss: {difference(judged.loss.difference)} nats: {loss_word(judged.loss)}."
        )
    else:
        said.append(f"{judged.loss_is.capitalize()} loss: {loss_word(judged.loss)}.")
    return said


def _left_out(one: Comparison) -> Iterator[str]:
    """Why a side has nothing to be compared."""
    for side in (one.left, one.right) if one.left is not one.right else (one.left,):
        if side.counted:
            continue
        changed = [run for run in side.runs if run.completed and run.changed]
        why = "a retry changed what completed" if changed else "none of its runs has completed"
        yield f"{side.name} is not compared: {why}."


def comparison_document(one: Comparison) -> dict[str, Any]:
    """For JSON."""
    loss = one.judged.loss
    return {
        "left": one.left.name,
        "right": one.right.name,
        "configuration": [{"field": name, "left": a, "right": b} for name, a, b in one.differences],
        "times_left": one.judged.times_baseline.value if one.judged.times_baseline else None,
        "order": one.judged.order,
        "loss": {
            "verdict": loss.verdict,
            "difference": loss.difference.value if loss.difference else None,
            "margin": loss.margin,
            "reason": loss.reason,
        },
        "figures": {
            name: [a, b] for (name, a), (_, b) in zip(values_of(one.left), values_of(one.right), strict=True) if a or b
        },
        "verdict": verdict(one),
    }


_ABSENT: Final = object()


def _text(value: object) -> str:
    return MISSING if value is _ABSENT else value if isinstance(value, str) else json.dumps(value, default=str)
