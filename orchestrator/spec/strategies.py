"""Strategies by name, and a single form for each value of a run: equal experiments have equal digests. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding

from .model import TrainConfig

STRATEGIES: Final[dict[str, dict[str, Any]]] = {
    "ddp": {"engine": "ddp", "zero_stage": 0, "offload": "none"},
    **{f"zero{stage}": {"engine": "deepspeed", "zero_stage": stage, "offload": "none"} for stage in range(4)},
    **{f"zero{s}-offload": {"engine": "deepspeed", "zero_stage": s, "offload": "optimizer"} for s in (1, 2, 3)},
    "zero3-offload-full": {"engine": "deepspeed", "zero_stage": 3, "offload": "full"},
    "zero-infinity": {"engine": "deepspeed", "zero_stage": 3, "offload": "nvme"},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 0, "offload": "none"},
    "fsdp2-offload": {"engine": "fsdp2", "zero_stage": 0, "offload": "full"},
}
"""The fields that a strategy stands for."""

_PRECISIONS: Final = ("bf16", "fp16")
_OFFLOADS: Final = (("zero_optimization", "offload_optimizer"), ("zero_optimization", "offload_param"))
_OFFLOAD_NAMES: Final[dict[tuple[Any, ...], str]] = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("cpu", "cpu"): "full",
    ("nvme", "nvme"): "nvme",
}

_Moved = tuple[list[tuple[str, ...]], str, Any]
"""The places of a value in `deepspeed`, its field in `train`, and the value."""

Origins = dict[FieldPath, FieldPath]
"""The place in the spec that set each field, if it is another than the field's own."""


def canonical(data: Mapping[str, Any], origins: Origins) -> tuple[dict[str, Any], list[Finding]]:
    """Replace a strategy by its fields, and move the values of `deepspeed` that have a field in `train` there.

    These are the stage, precision and gradient clipping; for the built-in training also offload and DeepCompile.
    `origins` gets the place of each value that is moved. Values that are given twice and differ are findings.
    """
    # only these two are changed
    result = {**data, **{name: deepcopy(data[name]) for name in ("deepspeed", "train") if name in data}}
    deepspeed, train = result.get("deepspeed"), result.setdefault("train", {})
    if not isinstance(train, dict):
        return result, []
    findings = _spell_out(train, origins)
    if not isinstance(deepspeed, dict):
        return result, findings
    for paths, field, value in [*_moved(deepspeed, train, built_in=not result.get("command"))]:
        for path in paths:
            _pop(deepspeed, path)
        place: FieldPath = ("deepspeed", *paths[0])
        if field not in train:
            origins["train", field] = origin(place, origins)
        elif train[field] != value:
            message = f"deepspeed sets {field} to {value}, but train.{field} is {train[field]}"
            findings.append(Finding((place, ("train", field)), message, f"set it once, in train.{field}"))
        train.setdefault(field, value)
    return result, findings


def _spell_out(train: dict[str, Any], origins: Origins) -> list[Finding]:
    """Replace a strategy by its fields, in `train` itself; an unknown name stays, for the check of the field."""
    findings = []
    fields = STRATEGIES.get(name) if isinstance(name := train.get("strategy"), str) else None
    if fields is not None:
        place: FieldPath = ("train", "strategy")
        for field, value in fields.items():
            if train.get(field, value) != value:
                message = f"{name} means {field} {value}, but train.{field} is {train[field]}"
                findings.append(Finding((place, ("train", field)), message, f"remove strategy or {field}"))
        del train["strategy"]
        origins.update({("train", field): origin(place, origins) for field in fields if field not in train})
        train.update(fields)
    if train.get("offload") != "nvme":  # the base may name a disk for some points; the digests of others ignore it
        train.pop("nvme_path", None)
    return findings


def origin(place: FieldPath, origins: Origins) -> FieldPath:
    """Return the place of the value that set a field, or the field's own."""
    lengths = (n for n in range(len(place), 0, -1) if place[:n] in origins)
    return next(((*origins[place[:n]], *place[n:]) for n in lengths), place)


def name_of(train: TrainConfig) -> str | None:
    """Return the name of a configuration's strategy, None for none."""
    values = train.model_dump(include={"engine", "zero_stage", "offload"})
    return next((name for name, fields in STRATEGIES.items() if fields == values), None)


def section(value: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty mapping for anything else."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _moved(deepspeed: Mapping[str, Any], train: Mapping[str, Any], *, built_in: bool) -> Iterator[_Moved]:
    if (stage := section(deepspeed, ("zero_optimization",)).get("stage", "auto")) != "auto":
        yield [("zero_optimization", "stage")], "zero_stage", stage
    if (clip := deepspeed.get("gradient_clipping", "auto")) != "auto":
        yield [("gradient_clipping",)], "grad_clip", clip
    enabled = {name: section(deepspeed, (name,)).get("enabled") for name in _PRECISIONS}
    switches = sorted((name for name in _PRECISIONS if isinstance(enabled[name], bool)), key=lambda n: not enabled[n])
    if switches and not all(enabled.values()):
        without = "tf32" if train.get("precision") == "tf32" else "fp32"
        value = switches[0] if enabled[switches[0]] else without
        yield [(name, "enabled") for name in switches], "precision", value
    if built_in:
        yield from _moved_offload(deepspeed)
        if isinstance(deepcompile := section(deepspeed, ("compile",)).get("deepcompile"), bool):
            yield [("compile", "deepcompile")], "deepcompile", deepcompile


def _moved_offload(deepspeed: Mapping[str, Any]) -> Iterator[_Moved]:
    """Yield offload, if `train` has a name for it."""
    sections = {place: section(deepspeed, place) for place in _OFFLOADS}
    places = [place for place, offload in sections.items() if isinstance(offload.get("device"), str)]
    devices = tuple(str(offload.get("device", "none")) for offload in sections.values())
    disks = {place: o["nvme_path"] for place, o in sections.items() if isinstance(o.get("nvme_path"), str)}
    if places and devices in _OFFLOAD_NAMES and len(set(disks.values())) <= 1:
        yield [(*place, "device") for place in places], "offload", _OFFLOAD_NAMES[devices]
        if disks and devices == ("nvme", "nvme"):
            yield [(*place, "nvme_path") for place in disks], "nvme_path", next(iter(disks.values()))


def _pop(mapping: dict[str, Any], path: tuple[str, ...]) -> None:
    first, *rest = path
    if rest:
        _pop(mapping[first], tuple(rest))
    if not rest or not mapping[first]:
        del mapping[first]
