"""Axes of the matrix that the user's script seems not to read, and axes that change its learning. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.orchestrator.spec.effects import FIELDS, LEARNING

from .conditions import Condition, grouped, key_of, losses_of

_HOW: Final = re.compile(
    r"zero|stage|strateg|offload|shard|micro|accum|compile|checkpointing|precision|dtype|worker|attn|attention"
)
"""In the name of a script's own parameter: it decides how a step is computed, not what is learned."""

_Losses = tuple[tuple[float, float], ...]


def learning_axes(conditions: Sequence[Condition]) -> list[str]:
    """Return the axes in which conditions differ and that change the learning: then losses lead."""
    first = conditions[0].runs[0] if conditions else None
    own = bool(first and first.config.get("command"))
    varying = dict.fromkeys(name for each in conditions for name in each.params)
    return [
        name
        for name in varying
        if len({key_of(each.params.get(name)) for each in conditions}) > 1
        and (name.removeprefix("train.") in LEARNING or (own and _is_own(name) and not _HOW.search(name.lower())))
    ]


def _is_own(name: str) -> bool:
    """Return whether an axis is a script's own parameter: neither a field of the spec nor a label of points."""
    return "." not in name and name not in FIELDS and name not in ("label", "strategy", "nodes", "ranks_per_node")


def ignored(runs: Iterable[MeasuredRun]) -> list[str]:
    """Return the axes that change no digit of any loss, if all else and the seed are equal."""
    own = (run for run in runs if run.completed and run.config.get("command"))
    with_losses = [(run, losses) for run in own if (losses := losses_of(run))]
    axes = dict.fromkeys(name for run, _ in with_losses for name in run.params if not _HOW.search(name.lower()))
    return [axis for axis in axes if _changes_nothing(axis, with_losses)]


def _changes_nothing(axis: str, with_losses: list[tuple[MeasuredRun, _Losses]]) -> bool:
    alike = grouped(with_losses, lambda pair: [pair[0].repeat, {k: v for k, v in pair[0].params.items() if k != axis}])
    several = [group for group in alike if len({key_of(run.params.get(axis)) for run, _ in group}) > 1]
    return bool(several) and all(len({losses for _, losses in group}) == 1 for group in several)
