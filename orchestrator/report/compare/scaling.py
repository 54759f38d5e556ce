"""The gain of more ranks: conditions that differ in nothing else. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final

from .conditions import Condition, devices_among, environment_key, grouped

STRONG: Final = "batch"
WEAK: Final = "batch of a rank"

_NUMBER: Final = re.compile(r"(^|:)[1-9]\d*(?=,|$)")
"""How many GPUs, behind their type: `h100:8`, `gpu:h100:8`. None at all, `0`, is another machine."""


@dataclass(frozen=True)
class ScalingPoint:
    """A condition beside its reference, the condition with the fewest ranks, which may be itself.

    Attributes:
        keeps: the common part: ``STRONG`` or ``WEAK``; empty if the batch is unknown.
        efficiency: speed of a rank as a share of the reference's.
    """

    condition: Condition
    reference: Condition
    keeps: str
    ranks: int
    tokens_per_s: float
    efficiency: float


def scaling_of(conditions: Sequence[Condition]) -> list[ScalingPoint]:
    """Return every set of conditions that differ only in their ranks, from the fewest on, on the same kind of device.

    A set has a condition for each number of ranks. All have the same batch, or else the same batch of a rank; a
    condition may be in a set of either kind.
    """
    known = [one for one in conditions if _tokens_per_s(one) and len(one.devices) < 2]
    devices = devices_among(known)
    batches = [(*batch, condition) for condition in known for batch in _batches(condition)]
    groups = grouped(batches, lambda one: [one[0], one[1], devices(one[2]), _kind(one[2])])
    found: list[ScalingPoint] = []
    for group in sorted(groups, key=lambda group: group[0][0]):
        for alike in _apart([condition for *_, condition in group]):
            found += _scaled(alike, group[0][0])
    return found


def _scaled(alike: Sequence[Condition], keeps: str) -> Iterator[ScalingPoint]:
    if len(alike) < 2:
        return
    reference, *_ = ordered = sorted(alike, key=lambda one: one.ranks)
    least = _tokens_per_s(reference) / reference.ranks
    for one in ordered:
        speed = _tokens_per_s(one)
        yield ScalingPoint(one, reference, keeps, one.ranks, speed, speed / one.ranks / least)


def _tokens_per_s(condition: Condition) -> float:
    return condition.value("tokens_per_s") or 0.0


def _batches(condition: Condition) -> list[tuple[str, float]]:
    """Return the batches that others must share: the whole batch, or the batch of a rank."""
    samples = condition.field("global_batch")
    return [(STRONG, samples), (WEAK, samples / condition.ranks)] if samples else [("", 0)]


def _kind(condition: Condition) -> list[Any]:
    """Return the configuration without the number of ranks and fields that may change with it."""
    train = condition.runs[0].train
    around = {name: value for name, value in environment_key(condition).items() if name != "ranks_per_node"}
    slurm = {name: value for name, value in around["slurm"].items() if name not in ("nodes", "cpus_per_task")}
    types = {name: _NUMBER.sub("", str(slurm[name])) for name in ("gpus_per_node", "gres") if name in slurm}
    own = {name: value for name, value in train.items() if name not in ("global_batch", "micro_batch")}
    return [own, around | {"slurm": slurm | types}]


def _apart(group: Sequence[Condition]) -> list[list[Condition]]:
    """Return parts with a condition for each number of ranks, which differ in as few details as possible."""
    every = ("micro_batch", "nodes", "cpus_per_task")
    for details in (chosen for number in range(len(every) + 1) for chosen in combinations(every, number)):
        parts = grouped(group, partial(_details, details))
        if all(len({one.ranks for one in part}) == len(part) for part in parts):
            return parts
    return []


def _details(names: Sequence[str], condition: Condition) -> list[Any]:
    """Return fields that may change with the number of ranks, and that separate conditions with the same number."""
    run = condition.runs[0]
    return [(run.train if name == "micro_batch" else run.slurm).get(name) for name in names]
