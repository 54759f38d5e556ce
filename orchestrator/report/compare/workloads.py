"""Conditions that do the same work may be compared; and axes that change their learning, or nothing at all. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from dscampaign.orchestrator.campaign.titles import titles_of
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import flat_fields
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.effects import FIELDS, LEARNING, WORK

from .conditions import Condition, baseline_of, key_of, losses_of

_WIDTH: Final = 0.2
"""Part of a run over which losses are averaged to see when they came down."""


@dataclass(frozen=True)
class Workload:
    """Conditions with the same model, data, tokens per step and ranks, and their baseline with its reason.

    The name is the title of their difference from other workloads; empty if the campaign has no other.
    """

    name: str
    conditions: tuple[Condition, ...]
    baseline: Condition
    because: str


def workloads_of(
    conditions: Sequence[Condition], baseline: str | None = None, of_spec: Mapping[str, Any] | None = None
) -> list[Workload]:
    """Return the workloads of a campaign, in the order of the matrix.

    `baseline` names the baseline of its workload; other workloads have their default, by the spec's values `of_spec`.
    """
    groups = [changed_alike(group) for group in alike(conditions, lambda one: key_of(_asked_work(one)))]
    titles = titles_of({str(place): dict(flat_fields(_asked_work(own[0]))) for place, own in enumerate(groups)})
    names = [title if len(groups) > 1 else "" for title in titles.values()]
    named_groups = zip(names, groups, strict=True)
    return [Workload(name, group, *baseline_of(group, baseline, of_spec)) for name, group in named_groups]


def changed_alike(group: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return conditions as comparable if a retry changed all completed runs alike, and no step ran before that."""
    done = [run for one in group for run in one.runs if run.completed]
    changes = {(run.first_micro_batch, run.micro_batch, run.changes) for run in done}
    if len(changes) == 1 and done[0].changed and not any(run.mixed for run in done):
        return tuple(replace(one, runs=tuple(replace(run, alike=True) for run in one.runs)) for one in group)
    return tuple(group)


def _asked_work(condition: Condition) -> dict[str, Any]:
    """Return the spec's model, data and ranks of a condition; None for missing fields."""
    return {**{name: condition.field(name) for name in WORK}, "ranks": condition.ranks}


def common_loss(conditions: Sequence[Condition]) -> float | None:
    """Return a loss, in nats, that every run that counts comes down to before its end; None if no loss is known.

    It is the highest of the mean losses in the second half of each run without its end: a single low loss, which the
    noisiest curve has, sets no level.
    """
    return max((level for one in conditions for run in one.counted if (level := _level(run)) is not None), default=None)


def seconds_to_loss(run: MeasuredRun, target: float) -> float | None:
    """Return how long a run trained with a loss above the target; None if it never came down, or it is unclear.

    The first time at which a noisy curve is below it comes the earlier the noisier it is. The time above it does not:
    noise that shortens it before the curve crosses lengthens it behind.
    """
    smoothed = np.array(run.curve.smoothed)
    reach = [min(int(_WIDTH * smoothed.size / 2), place, smoothed.size - 1 - place) for place in range(smoothed.size)]
    losses = np.array([smoothed[place - width : place + width + 1].mean() for place, width in enumerate(reach)])
    above, below = np.flatnonzero(losses > target), np.flatnonzero(losses <= target)
    if not below.size:
        return None
    seconds = np.diff(run.curve.seconds, prepend=0.0)
    total = float(seconds[above].sum())
    unsure = seconds[below[0] : above[-1] + 1].sum() if above.size else 0.0
    return None if unsure > 0.5 * total else total  # noise takes it across the target for most of that time


def _level(run: MeasuredRun) -> float | None:
    losses = np.array(run.curve.smoothed)
    begin, end = losses.size // 2, int(0.8 * losses.size)  # it has come down to this, and goes on from it
    window = losses[begin : max(end, begin + 1)]
    window = window[np.isfinite(window)]
    return float(window.mean()) if window.size else None


_HOW: Final = re.compile(
    r"zero|stage|strateg|offload|shard|micro|accum|compile|checkpointing|precision|dtype|worker"
    r"|(?:attn|attention)(?:_?(?:impl|backend|kernel)\w*)?$|^(?:python|container|launcher|slurm|nodes|ranks_per_node)\b"
)
"""In the name of an axis: it decides how a step is computed, not what is learned, and no script need read it."""


def learning_axes(conditions: Sequence[Condition]) -> list[str]:
    """Return the axes in which conditions differ and that change the learning: then losses lead."""
    own_script = bool(conditions and conditions[0].runs[0].config.get("command"))
    axes = dict.fromkeys(name for each in conditions for name in each.params)
    varying = [name for name in axes if len({key_of(each.params.get(name)) for each in conditions}) > 1]

    def is_of_script(name: str) -> bool:
        return own_script and "." not in name and name not in (*FIELDS, "label") and not _HOW.search(name.lower())

    return [name for name in varying if name.removeprefix("train.") in LEARNING or is_of_script(name)]


def ignored(runs: Iterable[MeasuredRun]) -> list[str]:
    """Return the axes that change no digit of any loss, if all else and the seed are equal."""
    own = (run for run in runs if run.completed and run.config.get("command"))
    with_losses = [(run, losses) for run in own if (losses := losses_of(run))]

    def changes_nothing(axis: str) -> bool:
        groups = alike(with_losses, lambda one: (one[0].repeat, key_of({**one[0].params, axis: None})))
        several = [group for group in groups if len({key_of(run.params.get(axis)) for run, _ in group}) > 1]
        return bool(several) and all(len({losses for _, losses in group}) == 1 for group in several)

    axes = dict.fromkeys(name for run, _ in with_losses for name in run.params if not _HOW.search(name.lower()))
    return [axis for axis in axes if changes_nothing(axis)]
