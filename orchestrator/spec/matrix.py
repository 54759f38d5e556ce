"""The matrix of a spec, as GitHub Actions has it: its points, their placeholders and their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from itertools import product
from json import dumps
from math import prod
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from dscampaign.jobs.shared.placeholders import (
    AT_LAUNCH,
    OF_A_RANK,
    filled,
    filled_words,
    names_in,
    needed_in,
    unclosed,
)
from dscampaign.orchestrator.errors import FieldPath, Finding, InvalidSpec, did_you_mean, nearest
from dscampaign.orchestrator.formatting import last_part

from .field_types import Scalar
from .model import STRATEGIES, LocalConfig, RunConfig, TrainConfig
from .sections import ContainerConfig, RetryConfig
from .slurm_section import SlurmConfig
from .yaml_source import written

Path = tuple[str, ...]
"""The keys that lead to a field of a run's configuration."""

ENTRIES: Final = ("include", "exclude")  # parts of a matrix that are not axes
_MAX_GRID: Final = 100_000
_MAX_NAME: Final = 100
_MAX_VALUE: Final = 40
_SECTIONS: Final[dict[str, type[BaseModel]]] = {
    "train": TrainConfig,
    "slurm": SlurmConfig,
    "local": LocalConfig,
    "container": ContainerConfig,
    "retry": RetryConfig,
}
_OPEN = frozenset({("deepspeed",), ("env",), ("train", "model"), ("train", "dataset")})
_FIXED = frozenset({"name", "dir", "store", "matrix", "repeats", "max_runs", "executor"})
_LATER: Final = frozenset({"run", OF_A_RANK})
"""Filled in once the run has its name, and by each rank."""
_NEEDS: Final = {"micro_batch": ("global_batch", "micro_batch"), "accumulation": ("global_batch",)}
"""The fields of `train` without which an attempt has no such value."""


@dataclass(frozen=True)
class AxisSetting:
    """One value that a point sets.

    Attributes:
        key: The key as the spec has it.
        path: The field that it sets; None for a parameter of the command's own.
        place: Where the value stands in the spec.
        axis: The value is from an axis or an own point, not from an `include` that adds to points.
    """

    key: str
    path: Path | None
    value: Any
    place: FieldPath
    axis: bool = True


@dataclass(frozen=True)
class Point:
    """One combination of values, of which the later counts for a field, and the parts of its name."""

    settings: tuple[AxisSetting, ...] = ()
    labels: tuple[tuple[str, Scalar | None], ...] = ()

    @cached_property
    def params(self) -> dict[str, Scalar | None]:
        """Its values by short names; for a structured value its label."""
        own = {short_name(s.key): as_scalar(s.value) for s in self.settings if s.axis}
        return own | {name or "label": value for name, value in self.labels}


def points(
    matrix: Mapping[str, Any], placeholders: Mapping[str, FieldPath] = MappingProxyType({})
) -> tuple[list[Point], list[Finding]]:
    """Return all points of a matrix, the last axis varying fastest, and its errors; no points if an axis has no value.

    Args:
        placeholders: Names that the command uses, with their places: such a key is a parameter, not a field.
    """
    usable, findings = _usable(matrix)
    axes = {name: values for name, values in usable.items() if values}
    includes, excludes = axes.pop("include", {}), axes.pop("exclude", {})
    if (size := prod(len(values) for values in axes.values())) > _MAX_GRID:
        return [], [*findings, Finding((("matrix",),), f"has {size} combinations", "vary fewer fields at once")]
    choices = {name: [_choice(name, value, index) for index, value in values.items()] for name, values in axes.items()}
    grid = [
        Point(sum((part.settings for part in parts), ()), sum((part.labels for part in parts), ()))
        for parts in (product(*choices.values()) if axes or not includes else ())
    ]
    kept = [point for point in grid if not any(_has(point, entry) for entry in excludes.values())]
    result = _include(kept, includes)
    findings += [*key_findings([*grid, *result], placeholders), *_rivals(choices)]
    for index, entry in excludes.items():
        if not any(_has(point, entry) for point in grid):
            hint = "name axes, each with one of its values: numbers without quotes, no lists"
            findings.append(Finding((("matrix", "exclude", index),), "excludes nothing", hint))
    silent = any(not values for values in usable.values())
    if not result and not silent:
        findings.append(Finding((("matrix", "exclude"), ("matrix",)), "leaves no run", "exclude fewer points"))
    return [] if silent else result, findings


def entries(matrix: Mapping[str, Any]) -> list[Point]:
    """Return each value of each axis, and each entry of `include`, as a point of its own."""
    usable, _ = _usable(matrix)
    axes = ((name, values) for name, values in usable.items() if name not in ENTRIES)
    values = [_choice(name, value, index) for name, own in axes for index, value in own.items()]
    includes = usable.get("include", {}).items()
    return [*values, *(_linked(entry, ("matrix", "include", index)) for index, entry in includes)]


@cache
def field_path(key: str) -> Path | None:
    """Return the field of a key of the matrix: a dotted path, or its last part if only one field ends so."""
    path = tuple(key.split("."))
    if any(path[: len(prefix)] == prefix for prefix in _OPEN) or (path[0] == "slurm" and len(path) == 2):
        return path
    paths = _fields().get(key.replace("-", "_"), ())
    return paths[0] if len(paths) == 1 else None


def axis_of(path: Path, matrix: Any) -> str | None:
    """Return the axis whose values all set a field, so that no other value of it would count."""
    axes = _usable(matrix)[0] if isinstance(matrix, dict) else {}
    for name in axes.keys() - {*ENTRIES}:
        chosen = [_choice(name, value, 0).settings for value in axes[name].values()]
        if chosen and all(path in (setting.path for setting in settings) for settings in chosen):
            return name
    return None


def short_name(key: str) -> str:
    """Return the last part of a dotted key."""
    return key.rpartition(".")[2]


def as_scalar(value: Any) -> Scalar | None:
    """Return a value as a parameter: itself, or the label or a short digest of a structured value."""
    if value is None or isinstance(value, Scalar):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("label"), Scalar):
        return str(value["label"])
    return sha256(dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:6]


def _usable(matrix: Mapping[str, Any]) -> tuple[dict[str, dict[int, Any]], list[Finding]]:
    """Return the values of each key by their index, and findings for keys and values that cannot be used."""
    usable, findings = dict[str, dict[int, Any]](), list[Finding]()
    given = {name: value for name, value in matrix.items() if value is not None or name not in ENTRIES}
    if set(given) == {"exclude"}:
        return {}, [Finding((("matrix", "exclude"),), "there is nothing to exclude from", "add an axis")]
    for name, value in given.items():
        values = dict(enumerate(value if isinstance(value, list) else [value] if isinstance(value, Scalar) else []))
        if not isinstance(value, list):
            inner = [key for key in value if field_path(f"{name}.{key}")] if isinstance(value, dict) else []
            hint = f"write {name}.{inner[0]}" if inner else f"write {written([value], flow=True)}"
            findings.append(Finding((("matrix", name),), "expected a list of values", hint))
        elif not values:
            findings.append(Finding((("matrix", name),), "has no values", "give at least one, or remove it"))
        wrong = [i for i, v in values.items() if name in ENTRIES and not (v and isinstance(v, dict))]
        findings += [Finding((("matrix", name, index),), "expected fields with their values") for index in wrong]
        usable[name] = {index: value for index, value in values.items() if index not in wrong}
    return usable, findings


def _choice(name: str, value: Any, index: int) -> Point:
    """Return a value of an axis; a mapping under a name that is not a field sets several fields together."""
    place: FieldPath = ("matrix", name, index)
    if field_path(name) is None and isinstance(value, dict):
        return _linked(value, place, name)
    return Point((_setting(name, value, place),), ((short_name(name), as_scalar(value)),))


def _linked(entry: Mapping[str, Any], place: FieldPath, name: str = "") -> Point:
    """Return a point from a mapping of several fields; its `label` replaces them in the name."""
    settings = tuple(_setting(str(key), entry[key], (*place, key)) for key in entry if key != "label")
    if isinstance(entry.get("label"), Scalar):
        return Point(settings, ((name, entry["label"]),))
    return Point(settings, tuple((short_name(s.key), as_scalar(s.value)) for s in settings))


def _setting(key: str, value: Any, place: FieldPath) -> AxisSetting:
    path = field_path(key)
    bare = {k: v for k, v in value.items() if k != "label"} if path and isinstance(value, dict) else value
    return AxisSetting(key, path, bare, place)


def _include(grid: Sequence[Point], entries: Mapping[int, Mapping[str, Any]]) -> list[Point]:
    # An entry with a label is always a point of its own; a later entry replaces the values of an earlier one.
    grown, own = list(grid), []
    for index, entry in entries.items():
        point = _linked(entry, ("matrix", "include", index))
        fits = [] if "label" in entry else [i for i, original in enumerate(grid) if _agrees(original, entry)]
        for i in fits:
            new = tuple(replace(s, axis=False) for s in point.settings if not _values(grid[i], s.key))
            grown[i] = replace(grown[i], settings=(*grown[i].settings, *new))
        own += [] if fits else [point]
    return [*grown, *own]


def _agrees(point: Point, entry: Mapping[str, Any]) -> bool:
    return _has(point, {key: value for key, value in entry.items() if _values(point, key)})


def _has(point: Point, entry: Mapping[str, Any]) -> bool:
    """Return whether a point has all values of an entry."""
    return all(
        any(isinstance(own, bool) == isinstance(value, bool) and own == value for own in _values(point, key))
        for key, value in entry.items()
    )


def _values(point: Point, key: str) -> list[Any]:
    """Return a point's own values of a key; a structured value also counts by its label."""
    path = field_path(key)
    values = [s.value for s in point.settings if s.key == key or (path is not None and s.path == path)]
    return values + [label for name, label in point.labels if name == key]


def key_findings(points: Sequence[Point], placeholders: Mapping[str, FieldPath]) -> Iterator[Finding]:
    """Find keys that are not fields that can vary; each once, at its first place."""
    settings = [s for point in points for s in point.settings]
    for key, place in {s.key: s.place for s in reversed(settings)}.items():
        key_place = place[:-1] if isinstance(place[-1], int) else place
        if key.partition(".")[0] in _FIXED:
            yield Finding((key_place,), "cannot vary within a campaign", "write a second spec", at_key=True)
        elif field_path(key) is None and fields_ending_in(key):
            yield Finding((key_place,), "means more than one field", near_field(key), at_key=True)
        elif field_path(key) is None and short_name(key) not in placeholders:
            path = field_path(nearest(key, _fields()) or "")
            places = (key_place, path) if path else (key_place,)
            unknown = "is neither a field nor a {placeholder} in `command` or `env`"
            hint = f"name a field (train.lr), or use {{{short_name(key)}}} in `command`"
            yield Finding(places, unknown, did_you_mean(key, (*_fields(), *placeholders), hint), at_key=True)


def _rivals(axes: Mapping[str, Sequence[Point]]) -> Iterator[Finding]:
    owners: dict[Path | str, str] = {}
    for name, choices in axes.items():
        for field in dict.fromkeys(s.path or s.key for point in choices for s in point.settings):
            if (owner := owners.setdefault(field, name)) != name:
                message = f"sets {field if isinstance(field, str) else '.'.join(field)}, as the axis {owner} does"
                yield Finding((("matrix", name),), message, "use an axis per field", at_key=True)


def near_field(key: str) -> str:
    """Return a hint that names the field that a misspelt key may mean, or the fields that end with it."""
    if ends := fields_ending_in(key):
        return f"write {' or '.join(ends)}"
    return did_you_mean(key, _fields(), "write the dotted path of a field: train.lr")


def fields_ending_in(key: str) -> list[str]:
    """Return the fields that a key is the last part of, if they are several."""
    ends = _fields().get(key.replace("-", "_"), ())
    return [".".join(path) for path in ends] if len(ends) > 1 else []


@cache
def _fields() -> Mapping[str, tuple[Path, ...]]:
    """Return the fields of a run that can vary, by their dotted paths, and by their last parts unless of the top."""
    fields: dict[str, tuple[Path, ...]] = {name: ((name,),) for name in RunConfig.model_fields if name not in _FIXED}
    for section, model in _SECTIONS.items():
        for name in model.model_fields:
            fields[f"{section}.{name}"] = ((section, name),)
            if name not in RunConfig.model_fields:
                fields[name] = (*fields.get(name, ()), (section, name))
    return fields


# Placeholders of `command` and `env` that are known before the attempts of a run


def fields_of(config: RunConfig, repeat: int) -> dict[str, object]:
    """Return the values that the fields of a configuration have for placeholders."""
    fields = {key: value for key, value in vars(config.train).items() if isinstance(value, Scalar)}
    own = config.train.model_dump(include={"engine", "zero_stage", "offload"})
    fields.update(("strategy", name) for name, values in STRATEGIES.items() if values == own)
    fields.pop("micro_batch", None)
    return {**fields, "repeat": repeat}


def values_of(fields: Mapping[str, object], point: Point) -> dict[str, object]:
    """Return the values of all placeholders of a point but the run's name and the attempt's placeholders."""
    own = {setting.key: setting.value for setting in point.settings} | point.params
    wholes = {name: value for name, value in fields.items() if type(value) is int}
    values = {**fields, **own, **wholes}  # `1e3` is 1000, a repeat has its seed
    sizes = {key for s in point.settings if s.path == ("train", "micro_batch") for key in (s.key, short_name(s.key))}
    for name in sizes | _LATER:
        values.pop(name, None)
    return values


class Texts:
    """The command of a configuration and its environment; `used` are the short names in them, each with a place."""

    def __init__(self, config: RunConfig) -> None:
        self._config, self._words = config, (*config.launcher_options, *(config.command or ()))
        texts: list[tuple[FieldPath, str]] = [(("command",), word) for word in self._words]
        texts += [(("env", variable), text) for variable, text in config.env.items()]
        self._places = list(dict.fromkeys((name, place) for place, text in texts for name in names_in(text)))
        self.used = {short_name(name): place for name, place in reversed(self._places) if name != OF_A_RANK}

    @cached_property
    def _needed(self) -> set[str]:
        return {short_name(n) for n in (*needed_in(self._words), *names_in("".join(self._config.env.values())))}

    @cached_property
    def _unclosed(self) -> str | None:
        return unclosed(self._words)

    def filled(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields of a configuration with these values; raise InvalidSpec if there is none."""
        config = self._config
        if config.command is None:
            return {}
        if findings := list(self._unknown(values)):
            raise InvalidSpec(findings)
        command, options = (tuple(filled_words(words, values)) for words in (config.command, config.launcher_options))
        env = {variable: filled(text, values) for variable, text in config.env.items()}
        return {"command": command, "launcher_options": options, "env": env}

    def without_text(self, point: Point) -> Iterator[Finding]:
        """Find values that have neither text nor a label: a list, a mapping, a null that is no option's."""
        for setting in point.settings if self._config.command is not None else ():
            name, digest = short_name(setting.key), as_scalar(setting.value)
            fits = isinstance(setting.value, Scalar) or (setting.value is None and name not in self._needed)
            if name in self.used and not fits and point.params.get(name, digest) == digest:
                hint = "write a single value, quoted if it is text"
                yield Finding((setting.place,), f"is not text for {{{name}}} in `command` or `env`", hint)

    def _unknown(self, values: Mapping[str, object]) -> Iterator[Finding]:
        for name, place in self._places:
            if name in values or name in _LATER:
                continue
            if name not in AT_LAUNCH:
                hint = "use a parameter of the matrix, a field of train, {run} or {repeat}; {{name}} is the text itself"
                near = did_you_mean(name, [*values, *_LATER, *AT_LAUNCH], hint)
                hidden_by = ("matrix", name), ("search", "parameters", name)  # a wrong axis has an error of its own
                yield Finding((place, *hidden_by), f"{{{name}}} is not defined in some point", near)
            elif (needs := _NEEDS.get(name)) and not any(getattr(self._config.train, field) for field in needs):
                yield Finding((place,), f"{{{name}}} has no value", f"set train.{' or train.'.join(needs)}")
        if word := self._unclosed:
            message = f"{word} opens a bracket that does not close"
            yield Finding((("command",),), message, "write [--option {name}]")


# Names of runs: short, readable, safe as a folder's name, and the same when the matrix grows


def run_name(
    labels: Sequence[tuple[str, Scalar | None]], suffix: str, config_hash: str, others: Container[str] = frozenset()
) -> str:
    """Return the unique name of a run, for example `zero_stage-2_precision-bf16`.

    Of its labels, an empty name stands for a value alone; a digest settles a clash; `suffix` ends it, such as `-r1`.
    """
    words = [f"{_safe(key)}-{value_slug(value)}" if key else value_slug(value) for key, value in labels]
    name = _fit("_".join(words) or "run", _MAX_NAME - len(suffix)) + suffix
    return name if name not in others else f"{name[: _MAX_NAME - 9]}-{config_hash[:8]}"


def value_slug(value: Scalar | None) -> str:
    """Return a value for a name; if it is long or has other characters, it ends in a digest of itself."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    text = last_part(value) if isinstance(value, str) and value.startswith("/") else str(value)
    safe = _safe(text.replace("/", "-"))
    return _fit(safe if safe == text.replace("/", "-") else f"{safe}-{_digest(text)}", _MAX_VALUE)


@lru_cache
def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", text).strip("-.") or "x"


def _fit(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 9]}-{_digest(text)}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
