"""The placeholders of a run's `command` and `env` that are known before its attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from dscampaign.jobs.shared.placeholders import (
    AT_LAUNCH,
    OF_A_RANK,
    filled,
    filled_words,
    names_in,
    needed_in,
    unclosed,
)
from dscampaign.orchestrator.errors import FieldPath, Finding, InvalidSpec, did_you_mean

from . import strategies
from .field_types import Scalar
from .matrix import Point, as_scalar, short_name
from .model import RunConfig

_LATER: Final = frozenset({"run", OF_A_RANK})
"""Filled in once the run has its name, and by each rank."""
_NEEDS: Final = {"micro_batch": ("global_batch", "micro_batch"), "accumulation": ("global_batch",)}
"""The fields of `train` without which an attempt has no such value."""


def used(config: RunConfig) -> dict[str, FieldPath]:
    """Return the short names of all placeholders, each with its place."""
    return {short_name(name): place for name, place in reversed(_by_place(config)) if name != OF_A_RANK}


def values_of(config: RunConfig, point: Point, repeat: int) -> dict[str, object]:
    """Return the values of all placeholders but the run's name and those of an attempt."""
    fields = {key: value for key, value in vars(config.train).items() if isinstance(value, Scalar)}
    fields |= {"strategy": word} if (word := strategies.name_of(config.train)) else {}
    own = {setting.key: setting.value for setting in point.settings} | point.params
    sizes = {key for s in point.settings if s.path == ("train", "micro_batch") for key in (s.key, short_name(s.key))}
    always = {"repeat": repeat, "seed": config.train.seed}
    fields.pop("micro_batch", None)
    return {key: value for key, value in (fields | own | always).items() if key not in sizes | _LATER}


def fill(config: RunConfig, values: Mapping[str, object]) -> RunConfig:
    """Return the configuration with values in its command and environment; raise InvalidSpec without one."""
    if config.command is None:
        return config
    if findings := list(_unknown(config, values)):
        raise InvalidSpec(findings)
    command, options = (tuple(filled_words(words, values)) for words in (config.command, config.launcher_options))
    env = {variable: filled(text, values) for variable, text in config.env.items()}
    return config.model_copy(update={"command": command, "launcher_options": options, "env": env})


def without_text(config: RunConfig, point: Point) -> Iterator[Finding]:
    """Find values of placeholders that have neither text nor a label: a list, a mapping, a null that is no option's."""
    places, params = used(config), point.params
    mandatory = {short_name(name) for name in (*needed_in(_words(config)), *names_in("".join(config.env.values())))}
    for setting in point.settings:
        name, digest = short_name(setting.key), as_scalar(setting.value)
        fits = isinstance(setting.value, Scalar) or (setting.value is None and name not in mandatory)
        if name in places and not fits and params.get(name, digest) == digest:
            hint = "write a single value, quoted if it is text"
            yield Finding((setting.place,), f"is no text for {{{name}}} in `command` or `env`", hint)


def _unknown(config: RunConfig, values: Mapping[str, object]) -> Iterator[Finding]:
    for name, place in _by_place(config):
        if name in values or name in _LATER:
            continue
        if name not in AT_LAUNCH:
            hint = "use a parameter of the matrix, a field of train, {run} or {repeat}; {{name}} is the text itself"
            near = did_you_mean(name, [*values, *_LATER, *AT_LAUNCH], hint)
            hidden_by = ("matrix", name), ("search", "parameters", name)  # a wrong axis has an error of its own
            yield Finding((place, *hidden_by), f"{{{name}}} is not defined in some point", near)
        elif (needs := _NEEDS.get(name)) and not any(getattr(config.train, field) for field in needs):
            yield Finding((place,), f"{{{name}}} has no value", f"set train.{' or train.'.join(needs)}")
    if word := unclosed(_words(config)):
        yield Finding((("command",),), f"{word} opens a bracket that does not close", "write [--option {name}]")
    if "[{resume_from}]" in _words(config):
        hint = "write [--option {resume_from}], or read CAMPAIGN_RESUME in the script"
        yield Finding((("command",),), "[{resume_from}] cannot be left out: brackets hold an option", hint)


def _words(config: RunConfig) -> tuple[str, ...]:
    return (*config.launcher_options, *(config.command or ()))


def _by_place(config: RunConfig) -> list[tuple[str, FieldPath]]:
    texts: list[tuple[FieldPath, str]] = [(("command",), word) for word in _words(config)]
    texts += [(("env", variable), text) for variable, text in config.env.items()]
    return list(dict.fromkeys((name, place) for place, text in texts for name in names_in(text)))
