"""Figures over a number that the matrix varies: batch, length, model size, ranks, or a knob. Pure.

A sweep joins conditions across workloads: each length, and each model, is a workload of its own. Losses of workloads
cannot be compared, but speed and memory can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from dscampaign.orchestrator.spec.effects import WORK

from .conditions import Condition, devices_among, environment_key, grouped, key_of
from .sensitivity import NAMES_POINTS

MODEL_SIZE: Final = "parameters"
RANKS: Final = "ranks"

CHANGES_WORK: Final = (*WORK, MODEL_SIZE, RANKS)
"""Axes along which losses cannot be compared."""

_MOVES: Final[Mapping[str, frozenset[str]]] = {
    MODEL_SIZE: frozenset({"model", "tokenizer", "dataset"}),
    "global_batch": frozenset({"micro_batch"}),
    RANKS: frozenset({"global_batch", "micro_batch"}),
}
"""What may change along an axis beside it, where it does not vary by itself: a larger batch is often one of larger
micro-batches."""

_OTHERWISE: Final = ("nodes", "gpus_per_node", "ranks_per_node")
"""Of which the number of ranks says the same."""

_OF_RANKS: Final = ("nodes", "gpus_per_node", "gres", "cpus_per_task")
_DEVICES: Final = "on"
"""What the kinds of devices are called among what sets lines apart."""

_NAMES_LINES: Final = ("strategy", "zero_stage", "offload", "precision", "engine")


@dataclass(frozen=True)
class SweepPoint:
    """A condition and its place on the axis."""

    x: float
    condition: Condition


@dataclass(frozen=True)
class Line:
    """Conditions on the same kind of device that differ in the axis alone, by rising x.

    The name separates them from other lines.
    """

    name: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True)
class Sweep:
    """An axis with the lines along it, in the order of the matrix."""

    axis: str
    lines: tuple[Line, ...]

    @property
    def xs(self) -> list[float]:
        """Every value of the axis, rising."""
        return sorted({point.x for line in self.lines for point in line.points})


@dataclass(frozen=True)
class Grid:
    """Conditions that differ in two axes alone.

    Attributes:
        name: separates it from other grids of these axes.
        cells: by value of the first and of the second axis; a pair without a condition is missing.
    """

    across: str
    down: str
    name: str
    cells: Mapping[tuple[float, float], Condition]


Place = Callable[[Condition, str], float | None]
"""A condition's place on an axis; None where it has none."""


def sweeps_of(conditions: Sequence[Condition]) -> list[Sweep]:
    """Return every axis along which some conditions differ in nothing else.

    It has three values, or else it changes the work: a change between two values within a workload is an effect.
    """
    found, place = [], _places(conditions)
    for axis in _axes(conditions, place):
        there = [one for one in conditions if place(one, axis) is not None]
        groups = [group for group in _alike(there, (axis,), place) if len({place(one, axis) for one in group}) > 1]
        if groups:
            names = _names(groups, axis)
            lines = (Line(name, _points(group, axis, place)) for name, group in zip(names, groups, strict=True))
            found.append(Sweep(axis, tuple(lines)))
    return found


def grids_of(conditions: Sequence[Condition]) -> list[Grid]:
    """Return every two axes with at least two values each in conditions that differ in nothing else."""
    found, place = [], _places(conditions)
    for across, down in combinations(_axes(conditions, place), 2):
        groups = []
        there = [one for one in conditions if None not in (place(one, across), place(one, down))]
        for group in _alike(there, (across, down), place):
            places = {(place(one, across), place(one, down)) for one in group}
            wide, high = (len({cell[place] for cell in places}) for place in (0, 1))
            if min(wide, high) > 1 and len(places) > max(wide, high):
                groups.append(group)
        for name, group in zip(_names(groups, across, down), groups, strict=True):
            cells = {(place(one, across) or 0.0, place(one, down) or 0.0): one for one in reversed(group)}
            found.append(Grid(across, down, name, cells))
    return found


def _axes(conditions: Sequence[Condition], place: Place) -> list[str]:
    """Yield numbers with several values: parameters of the matrix, fields of the trainer, model size, ranks."""
    names = dict.fromkeys(name for one in conditions for name in one.params if name not in NAMES_POINTS)
    fields = dict.fromkeys(name for one in conditions for name in one.runs[0].train)
    candidates = [*names, *(name for name in fields if name not in names), MODEL_SIZE, RANKS]
    left_out = {"seed", "steps", "epochs", "zero_stage", *_OTHERWISE}
    return [name for name in candidates if name not in left_out and _is_axis(conditions, name, place)]


def _is_axis(conditions: Sequence[Condition], name: str, place: Place) -> bool:
    values = {place(one, name) for one in conditions} - {None}
    return len(values) > (1 if name in CHANGES_WORK else 2)


def _places(conditions: Sequence[Condition]) -> Place:
    """Return the places of conditions. A model that failed before it reported its size has that of another run."""
    runs = [run for one in conditions for run in one.runs]
    sizes = {key_of(run.train.get("model")): float(run.parameters) for run in runs if run.parameters}

    def place(condition: Condition, axis: str) -> float | None:
        run = condition.runs[0]
        if axis == MODEL_SIZE:
            return sizes.get(key_of(run.train.get("model")))
        if axis == RANKS:
            return float(condition.ranks)
        value = run.train[axis] if axis in run.train else condition.params.get(axis)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    return place


def _alike(conditions: Sequence[Condition], axes: Sequence[str], place: Place) -> Iterator[list[Condition]]:
    """Return conditions that differ only in these axes and in fields that follow them, one for each place."""
    moving = set[str]().union(*(_MOVES.get(axis, ()) for axis in axes))
    if "seq_len" in axes and len({one.tokens_per_step for one in conditions}) == 1:
        moving.add("global_batch")  # longer samples in a smaller batch: the same tokens a step
    for group in _alike_but(conditions, axes, moving):
        places = {tuple(place(one, axis) for axis in axes) for one in group}
        if len(places) == len(group):
            yield group
        else:
            yield from _alike_but(group, axes, {"model"} if MODEL_SIZE in axes else set())


def _alike_but(conditions: Sequence[Condition], axes: Sequence[str], moving: set[str]) -> list[list[Condition]]:
    free = {*axes, *moving}
    devices = devices_among(conditions)

    def rest(one: Condition) -> list[Any]:
        own = {name: value for name, value in one.params.items() if name not in {*free, *NAMES_POINTS}}
        train = {name: value for name, value in one.runs[0].train.items() if name not in {*free, "strategy"}}
        machine = environment_key(one)
        machine["deepspeed"] = None  # what the matrix varies of it is among the parameters
        if one.runs[0].config.get("command"):
            machine["command"] = None
        if RANKS in axes:
            machine["ranks_per_node"] = None
            machine["slurm"] = {name: value for name, value in machine["slurm"].items() if name not in _OF_RANKS}
            own = {name: value for name, value in own.items() if name not in _OTHERWISE}
        if any(name.startswith("env.") for name in axes):
            machine["env"] = None
        return [_without_labels(own, one), train, machine, devices(one)]

    return grouped(conditions, rest)


def _without_labels(params: Mapping[str, Any], condition: Condition) -> dict[str, Any]:
    """Return parameters without names of several fields, which repeat them. A script's own parameters stay."""
    run = condition.runs[0]
    if run.config.get("command"):
        return dict(params)
    return {
        name: value for name, value in params.items() if name in run.train or "." in name or not isinstance(value, str)
    }


def _points(group: Sequence[Condition], axis: str, place: Place) -> tuple[SweepPoint, ...]:
    placed = (SweepPoint(x, one) for one in group if (x := place(one, axis)) is not None)
    return tuple(sorted(placed, key=lambda point: point.x))


def _names(groups: Sequence[Sequence[Condition]], *axes: str) -> list[str]:
    """Return the names of groups: the parameters that a group shares and that differ between groups."""
    if len(groups) == 1:
        return [""]
    shared = [_shared(group, set(axes)) for group in groups]
    every = dict.fromkeys(name for one in shared for name in one)
    differ = [name for name in every if len({key_of(one.get(name)) for one in shared}) > 1]
    words = [name for name in differ if name in groups[0][0].params or name == _DEVICES] or differ
    names = [", ".join(f"{name} {one[name]}" for name in words if one.get(name) is not None) for one in shared]
    return [name or group[0].name for name, group in zip(names, groups, strict=True)]


def _shared(group: Sequence[Condition], free: set[str]) -> dict[str, Any]:
    """Parameters, and fields that a label may stand for, that all of a group have the same."""
    told = [_told(one) for one in group]
    first = {name: value for name, value in told[0].items() if name not in free}
    return {name: value for name, value in first.items() if all(key_of(one.get(name)) == key_of(value) for one in told)}


def _told(condition: Condition) -> dict[str, Any]:
    train = condition.runs[0].train
    named = {name: train[name] for name in _NAMES_LINES if name in train}
    return {**named, **condition.params, _DEVICES: ", ".join(condition.devices) or None}
