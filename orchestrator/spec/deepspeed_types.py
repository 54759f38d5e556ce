"""Values in `deepspeed:` that DeepSpeed would not take, before anything else reads the section. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from dscampaign.orchestrator.errors import FieldPath, Finding, did_you_mean, dotted

from .deepspeed_keys import CLOSED, KEYS, Kind
from .yaml_source import number_hint

_WITH_UNIT: Final = re.compile(r"[\d.,_]+\s*[A-Za-z]+")
_SAID: Final = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def without_wrong_values(data: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Finding]]:
    """One run's values as given, without those that DeepSpeed would not take, and what is said of these."""
    given = data.get("deepspeed")
    if not (findings := list(_wrong_values(given))):
        return data, []
    rest = deepcopy(given)
    for finding in findings:
        *around, key = finding.places[0][1:]
        holder: Any = rest
        for part in around:
            holder = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(holder, dict):  # not if it is wrong itself
            holder.pop(key, None)
    return {**data, "deepspeed": rest}, findings


def beside(findings: Iterable[Finding]) -> set[FieldPath]:
    """What may seem to be wrong for want of these values: what stands in the same section as one."""
    places = [finding.places[0] for finding in findings]
    return {place[:-1] if len(place) > 2 else place for place in places}


def _wrong_values(given: Any) -> Iterator[Finding]:
    """What in the section is of another type than its key takes, or out of its range, each where it stands."""
    for name, keys in KEYS.items():
        around = tuple(name.split(".")) if name else ()
        for key, value in _section(given, around).items():
            kind = keys.get(key)
            if kind is not None and not _taken(kind, value, lenient=name in CLOSED):
                place: FieldPath = ("deepspeed", *around, key)
                yield Finding((place,), f"expected {kind.words}", _hint(kind, value, place))


def _section(given: Any, path: tuple[str, ...]) -> Mapping[str, Any]:
    for key in path:
        given = given.get(key) if isinstance(given, Mapping) else None
    return given if isinstance(given, Mapping) else {}


def _taken(kind: Kind, value: Any, *, lenient: bool) -> bool:
    if value is None:
        return kind.empty
    if value == "auto" and kind.of != "text":
        return True  # which is said of everywhere at once: it is for another trainer to fill in
    return kind.fits(_READ[kind.of](value) if lenient and isinstance(value, str) and kind.of in _READ else value)


def _read(read: Callable[[str], int | float]) -> Callable[[str], Any]:
    """Reads what DeepSpeed's models take for a number, too: one in quotes."""

    def number(text: str) -> Any:
        with suppress(ValueError):
            return read(text)
        return text

    return number


_READ: Final = {"whole": _read(int), "number": _read(float)}
_NUMBERS: Final = tuple(_READ)


def _hint(kind: Kind, value: Any, place: FieldPath) -> str | None:
    """What to write instead."""
    if value is None:
        return "write a value, or leave the key out"
    if isinstance(value, list) and value and kind.of in (*_NUMBERS, "bool", "text"):
        return f"to compare several values, list them under `matrix`, as {dotted(place)}"
    if kind.of == "section":
        return _as_section(place, value)
    return _of_text(kind, value) if isinstance(value, str) else _without_fraction(kind, value)


def _of_text(kind: Kind, text: str) -> str | None:
    """What to write instead of a text."""
    if kind.choices:
        return did_you_mean(text, kind.choices, None)
    if kind.of == "bool" and text.lower() in _SAID:
        return f"write {_SAID[text.lower()]} without quotes"
    if kind.of in _NUMBERS and (hint := number_hint(text)):
        return hint
    return "write the number without a unit" if kind.of in _NUMBERS and _WITH_UNIT.fullmatch(text) else None


def _as_section(place: FieldPath, value: Any) -> str | None:
    keys = KEYS.get(".".join(map(str, place[1:])), {})
    key = {bool: "enabled", str: "device" if "device" in keys else "type", int: "stage"}.get(type(value))
    if key not in keys:
        return None
    return f"write {{{key}: {str(value).lower() if isinstance(value, bool) else value}}}"


def _without_fraction(kind: Kind, value: Any) -> str | None:
    """A whole number that is written as `1e6` where DeepSpeed takes digits alone."""
    whole = isinstance(value, float) and value.is_integer() and kind.fits(int(value))
    return f"write {int(value)}" if whole else None
