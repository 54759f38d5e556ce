"""Conditions that do the same work may be compared: the same model, tokens and order, on as many ranks. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dscampaign.orchestrator.formatting import count
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.effects import WORK

from .conditions import ALIKE, Condition, baseline_of, grouped, key_of

_DIGEST: Final = re.compile(r"[0-9a-f]{6}")  # as matrix.py makes it
_RANKS: Final = "ranks"

_LEVEL: Final = (0.5, 0.8)
"""Part of a run over which its mean loss is one that it has come down to, and goes on from."""

_WIDTH: Final = 0.2
"""Part of a run over which losses are averaged to see when they came down."""

_UNSURE: Final = 0.5
"""If noise takes the loss across a level over so much of the time until then, that time is not known."""


@dataclass(frozen=True)
class Workload:
    """Conditions with the same model, data, tokens per step and ranks, and their baseline with its reason.

    The name has the difference from other workloads, as ``model gpt2-large``; empty if the campaign has no other.
    """

    name: str
    conditions: tuple[Condition, ...]
    baseline: Condition
    because: str


@dataclass(frozen=True)
class TimeToLoss:
    """The training time of a condition above a loss, in nats, that all conditions reach.

    Seconds and tokens are medians over repeats; None if a repeat never reached it.
    """

    condition: Condition
    loss: float
    seconds: float | None
    tokens: float | None


def workloads_of(
    conditions: Sequence[Condition], baseline: str | None = None, given: Mapping[str, Any] | None = None
) -> list[Workload]:
    """Return the workloads of a campaign, in the order of the matrix.

    `baseline` names the baseline of its workload; other workloads have their default, by the spec's values `given`.
    """
    works = map(_work, conditions, _tokens_per_step(conditions))
    pairs = grouped(zip(conditions, works, strict=True), lambda pair: pair[1])
    groups = [_changed_alike([condition for condition, _ in group]) for group in pairs]
    names = _names(groups, [group[0][1] for group in pairs])
    named = zip(names, groups, strict=True)
    return [Workload(name, group, *baseline_of(group, baseline, given)) for name, group in named]


def _changed_alike(group: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return conditions as comparable if a retry changed all completed runs alike, and no step ran before that."""
    done = [run for one in group for run in one.runs if run.completed]
    changes = {(run.first_micro_batch, run.micro_batch, run.changes) for run in done}
    if len(changes) == 1 and done[0].changed and not any(run.mixed for run in done):
        return tuple(replace(one, runs=tuple(replace(run, alike=True) for run in one.runs)) for one in group)
    return tuple(group)


def asked_work(condition: Condition) -> dict[str, Any]:
    """Return the spec's model, data and ranks of a condition; None for missing fields."""
    return {**{name: condition.field(name) for name in WORK}, _RANKS: condition.ranks}


def times_to_loss(conditions: Sequence[Condition]) -> list[TimeToLoss]:
    """Return the times to a loss for conditions that differ in their tokens per step."""
    counted = [condition for condition in conditions if condition.counted]
    target = common_loss(counted)
    return [] if target is None else [_time(condition, target) for condition in counted]


def common_loss(conditions: Sequence[Condition]) -> float | None:
    """Return a loss, in nats, that every run that counts comes down to before its end; None if no loss is known.

    It is the highest of the mean losses in the second half of each run without its end: a single low loss, which the
    noisiest curve has, sets no level.
    """
    return max((level for one in conditions for run in one.counted if (level := _level(run)) is not None), default=None)


def seconds_to_loss(run: MeasuredRun, target: float) -> float | None:
    """How long a run trained with a loss above the target, in seconds; None if it never came down, or it is unclear."""
    point = _reached(run, target)
    return None if point is None else point[0]


def _tokens_per_step(conditions: Sequence[Condition]) -> list[int | None]:
    """Return the tokens per step of each condition, as one number if a script's own are alike.

    A condition without a known number has that of conditions with the same spec, if they agree.
    """
    known: dict[str, list[int]] = {}
    asked = [key_of(asked_work(condition)) for condition in conditions]
    for condition, work in zip(conditions, asked, strict=True):
        alike = known.setdefault(work, [])
        own = condition.tokens_per_step
        if own is not None and _nearest(own, alike) is None:
            alike.append(own)
    found = []
    for condition, work in zip(conditions, asked, strict=True):
        alike, own = known[work], condition.tokens_per_step
        only = alike[0] if len(alike) == 1 else None
        found.append(only if own is None else _nearest(own, alike))
    return found


def _nearest(own: int, known: Sequence[int]) -> int | None:
    return next((one for one in known if abs(one - own) <= ALIKE * one), None)


def _work(condition: Condition, tokens_per_step: int | None) -> dict[str, Any]:
    """Return model and data of a condition: of the spec, and of a script also as reported."""
    reported = {"tokens per step": tokens_per_step} if condition.runs[0].config.get("command") else {}
    return {**asked_work(condition), **reported}


def _names(groups: Sequence[Sequence[Condition]], works: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return names from the spec's parameters, if they separate the groups, else from the configurations."""
    shared = [_shared(group) for group in groups]
    told = [_name(params, _varying(shared)) for params in shared]
    if all(told) and len(set(told)) == len(groups):
        return told
    return [_name(work, _varying(works)) for work in works]


def _shared(group: Sequence[Condition]) -> dict[str, Any]:
    """Parameters that all conditions of a workload have the same and that may name it."""
    named = {name: value for name, value in group[0].params.items() if _names_work(name, group[0])}
    return {name: value for name, value in named.items() if all(one.params.get(name) == value for one in group)}


def _names_work(name: str, condition: Condition) -> bool:
    """Return whether a parameter names the work: no label, field of the strategy, or digest of a structure."""
    train = condition.runs[0].train
    digest = isinstance(train.get(name), Mapping) and _DIGEST.fullmatch(str(condition.params[name]))
    says_how = name in ("label", "strategy") or (name in train and name not in WORK)
    return not (digest or says_how)


def _varying(works: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for work in works for name in work)
    return [name for name in names if len({json.dumps(work.get(name), default=str) for work in works}) > 1]


def _name(work: Mapping[str, Any], varying: Sequence[str]) -> str:
    words = (f"{name} {_word(work[name])}" for name in varying if work.get(name) is not None and name != _RANKS)
    return ", ".join([*words, *([count(work[_RANKS], "rank")] if _RANKS in varying else [])])


def _word(value: Any) -> str:
    """A value in a heading: of a model's or dataset's fields the first that names it."""
    if isinstance(value, Mapping):
        numbers = [f"{key}={value[key]}" for key in value if isinstance(value[key], int | str)]
        return " ".join(numbers[:3])
    return str(value)


def _time(condition: Condition, target: float) -> TimeToLoss:
    reached = [_reached(run, target) for run in condition.counted]
    known = [point for point in reached if point is not None]
    if len(known) < len(reached) or not known:
        return TimeToLoss(condition, target, None, None)
    seconds, tokens = (statistics.median(values) for values in zip(*known, strict=True))
    return TimeToLoss(condition, target, seconds, tokens if math.isfinite(tokens) else None)


def _level(run: MeasuredRun) -> float | None:
    losses = np.array(run.curve.smoothed)
    begin, end = (int(share * losses.size) for share in _LEVEL)
    known = losses[begin : max(end, begin + 1)]
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else None


def _reached(run: MeasuredRun, target: float) -> tuple[float, float] | None:
    """Return the seconds and tokens that a run trained above the target.

    The first time at which a noisy curve is below it comes the earlier the noisier it is. The time above it does not:
    noise that shortens it before the curve crosses lengthens it behind.
    """
    curve = run.curve
    losses = _wide(np.array(curve.smoothed))
    above, below = np.flatnonzero(losses > target), np.flatnonzero(losses <= target)
    if not below.size:
        return None
    seconds, tokens = (np.diff(values, prepend=0.0) for values in (curve.seconds, curve.tokens))
    total = float(seconds[above].sum())
    unsure = seconds[below[0] : above[-1] + 1].sum() if above.size else 0.0
    return None if unsure > _UNSURE * total else (total, float(tokens[above].sum()))


def _wide(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean round each loss over ``_WIDTH`` of all, over fewer near the ends; NaN if one is not finite."""
    reach = [min(int(_WIDTH * losses.size / 2), place, losses.size - 1 - place) for place in range(losses.size)]
    return np.array([losses[place - width : place + width + 1].mean() for place, width in enumerate(reach)])
