"""Strategies by name, and a single form for each value of a run: equal experiments have equal digests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
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

Origins = dict[FieldPath, FieldPath]
"""The place in the spec that set each field, if it is another than the field's own."""


def canonical(data: Mapping[str, Any], origins: Origins) -> tuple[dict[str, Any], list[Finding]]:
    """Replace a strategy by its fields, of which `origins` gets the place; values that contradict it are findings.

    An unknown name stays, for the check of the field.
    """
    train, findings = data.get("train", {}), list[Finding]()
    if not isinstance(train, dict):
        return dict(data), findings
    train = dict(train)
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
    return {**data, "train": train}, findings


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
