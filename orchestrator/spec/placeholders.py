"""The placeholders of a run's `command` and `env` that are known before its attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

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

from .field_types import Scalar
from .matrix import Point, as_scalar, short_name
from .model import RunConfig

_LATER: Final = frozenset({"run", OF_A_RANK})
"""Filled in once the run has its name, and by each rank."""
_NEEDS: Final = {"micro_batch": ("global_batch", "micro_batch"), "accumulation": ("global_batch",)}
"""The fields of `train` without which an attempt has no such value."""


def fields_of(config: RunConfig, repeat: int) -> dict[str, object]:
    """Return the values that the fields of a configuration have for placeholders."""
    fields = {key: value for key, value in vars(config.train).items() if isinstance(value, Scalar)}
    fields |= {"strategy": word} if (word := config.train.strategy_name) else {}
    fields.pop("micro_batch", None)
    return {**fields, "repeat": repeat}


def values_of(fields: Mapping[str, object], point: Point) -> dict[str, object]:
    """Return the values of all placeholders of a point but the run's name and those of an attempt."""
    own = {setting.key: setting.value for setting in point.settings} | point.params
    wholes = {
        name: value for name, value in fields.items() if type(value) is int
    }  # `1e3` is 1000, a repeat has its seed
    values = {**fields, **own, **wholes}
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
        self._unclosed = unclosed(self._words)
        self._needed = {short_name(n) for n in (*needed_in(self._words), *names_in("".join(config.env.values())))}

    def filled(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the fields of a configuration with these values; raise InvalidSpec without one."""
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
                yield Finding((setting.place,), f"is no text for {{{name}}} in `command` or `env`", hint)

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
        if self._unclosed:
            message = f"{self._unclosed} opens a bracket that does not close"
            yield Finding((("command",),), message, "write [--option {name}]")
