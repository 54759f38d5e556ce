"""One form for each value of a run, for its meaning and for its digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding

from . import strategies

_PRECISIONS: Final = ("bf16", "fp16")
_OFFLOADS: Final = ("offload_optimizer", "offload_param")
_OFFLOAD_WORDS: Final[dict[tuple[Any, ...], str]] = {
    ("none", "none"): "none",
    ("cpu", "none"): "optimizer",
    ("cpu", "cpu"): "full",
    ("nvme", "nvme"): "nvme",
}

_Lifted = tuple[list[tuple[str, ...]], str, Any]
"""Where in `deepspeed` a value stands, its field in `train`, and the value."""


Origins = dict[FieldPath, FieldPath]
"""The place in the spec that set each field, if it is another than the field's own."""


def canonical(data: Mapping[str, Any], origins: Origins) -> tuple[dict[str, Any], list[Finding]]:
    """Give each value in a single place: a strategy as its fields, and in `train` the values that `deepspeed` has, too.

    That is the stage, precision and gradient clipping; for the built-in training also offload and DeepCompile.

    Args:
        data: One run's values as given, without defaults.
        origins: Gets the place of each value that is moved.

    Returns:
        A changed copy, and a finding for each value that is given twice and differs.
    """
    # only these two are changed
    result = {**data, **{name: deepcopy(data[name]) for name in ("deepspeed", "train") if name in data}}
    deepspeed, train = result.get("deepspeed"), result.setdefault("train", {})
    if not isinstance(train, dict):
        return result, []
    findings = strategies.spell_out(train, origins)
    if not isinstance(deepspeed, dict):
        return result, findings
    lifted = [*_lifted(deepspeed, train)] + ([] if result.get("command") else [*_lifted_strategy(deepspeed)])
    for paths, field, value in lifted:
        for path in paths:
            _pop(deepspeed, path)
        place: FieldPath = ("deepspeed", *paths[0])
        if field not in train:
            origins["train", field] = strategies.origin(place, origins)
        elif train[field] != value:
            message = f"deepspeed says {field} {value}, but train.{field} is {train[field]}"
            findings.append(Finding((place, ("train", field)), message, f"set it once, in train.{field}"))
        train.setdefault(field, value)
    return result, findings


def section(value: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the mapping at a path; an empty mapping for anything else."""
    found = _at(value, path)
    return found if isinstance(found, Mapping) else {}


def _lifted(deepspeed: Mapping[str, Any], train: Mapping[str, Any]) -> Iterator[_Lifted]:
    if (stage := section(deepspeed, ("zero_optimization",)).get("stage", "auto")) != "auto":
        yield [("zero_optimization", "stage")], "zero_stage", stage
    if (clip := deepspeed.get("gradient_clipping", "auto")) != "auto":
        yield [("gradient_clipping",)], "grad_clip", clip
    switched = [name for name in _PRECISIONS if _enabled(deepspeed, name) is not None]
    enabled = [name for name in switched if _enabled(deepspeed, name)]
    if switched and len(enabled) < 2:
        without = "tf32" if train.get("precision") == "tf32" else "fp32"
        first = sorted(switched, key=lambda name: name not in enabled)
        yield [(name, "enabled") for name in first], "precision", enabled[0] if enabled else without


def _lifted_strategy(deepspeed: Mapping[str, Any]) -> Iterator[_Lifted]:
    """Values of `deepspeed` that belong to a strategy: offload, if `train` has a name for it, and DeepCompile."""
    places = [("zero_optimization", name) for name in _OFFLOADS]
    sections = [section(deepspeed, place) for place in places]
    given = [place for place, offload in zip(places, sections, strict=True) if isinstance(offload.get("device"), str)]
    devices = tuple(str(offload.get("device", "none")) for offload in sections)
    paths = {offload["nvme_path"] for offload in sections if isinstance(offload.get("nvme_path"), str)}
    if given and devices in _OFFLOAD_WORDS and len(paths) <= 1:
        yield [(*place, "device") for place in given], "offload", _OFFLOAD_WORDS[devices]
        if paths and devices == ("nvme", "nvme"):
            holders = [
                place for place, one in zip(places, sections, strict=True) if isinstance(one.get("nvme_path"), str)
            ]
            yield [(*place, "nvme_path") for place in holders], "nvme_path", paths.pop()
    if isinstance(deepcompile := section(deepspeed, ("compile",)).get("deepcompile"), bool):
        yield [("compile", "deepcompile")], "deepcompile", deepcompile


def _enabled(deepspeed: Mapping[str, Any], name: str) -> bool | None:
    value = section(deepspeed, (name,)).get("enabled")
    return value if isinstance(value, bool) else None


def _pop(mapping: dict[str, Any], path: tuple[str, ...]) -> None:
    first, *rest = path
    if rest:
        _pop(mapping[first], tuple(rest))
    if not rest or not mapping[first]:
        del mapping[first]


def _at(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path; an empty mapping for none."""
    for key in path:
        value = value.get(key, {}) if isinstance(value, Mapping) else {}
    return value
