"""Dataclasses as JSON: written whole to files, and read back by the types of their fields, or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dscampaign.db.storable import MAX_BIGINT, MAX_INT, MAX_TIME_S, MAX_WHOLE
from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.files.regular_files import concerns_one_file


@dataclass(frozen=True)
class Within:
    """The range of a number, its ends included."""

    least: float
    most: float


Time = Annotated[float, Within(0, MAX_TIME_S)]
"""A moment, in seconds since 1970."""

Whole = Annotated[int, Within(0, MAX_WHOLE)]
"""Steps or bytes."""

Count = Annotated[int, Within(1, MAX_INT)]
"""How many there are of something, at least one."""

Number = Annotated[int, Within(-MAX_INT, MAX_INT)]
"""An exit code, a process, a rank."""

_SHOWN: Final = 40  # characters of a wrong value
_NAMED: Final = 8


class Unreadable(ValueError):
    """A file does not hold the record that it should; the message names the file and the first thing that is wrong."""


def decode(kind: Any, raw: Any, place: str = "") -> Any:
    """A value of a type, from what JSON made of it.

    Args:
        kind: a dataclass or a typed dictionary, a tuple, list or mapping of types, text, a number (whole ones have 64
            bits, others are finite), a truth value, one of some words, or any of these or None. An annotation narrows
            it: to a range, or from any dictionary to a typed one.
        raw: the value.
        place: where it stands, for the error.

    Raises:
        ValueError: it is not of that type, or a dataclass lacks a field, or has an unknown one and is `exact`: another
            version wrote it.
    """
    origin, args = _form(kind)
    if origin in (UnionType, Union):
        return _first_that_fits(args, raw, place)
    if origin is Literal:
        return _one_of(args, raw, place)
    if origin is Annotated:
        narrower = args[1]
        found = decode(args[0] if isinstance(narrower, Within) else narrower, raw, place)
        return _in_range(found, narrower, place) if isinstance(narrower, Within) else found
    if origin in (tuple, list):
        return origin(_values(origin, args, raw, place))
    if origin in (dict, Mapping):
        items = _require(dict, raw, place).items()
        return {_key(args[0], key, place): decode(args[1], value, _below(place, key)) for key, value in items}
    read = _record if is_dataclass(kind) else _dictionary if is_typeddict(kind) else _plain
    return read(kind, raw, place)


@cache
def _form(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Origin and arguments of a type: one record has hundreds of values."""
    return get_origin(kind), get_args(kind)


@dataclass(frozen=True)
class Document:
    """A dataclass that is kept in a file."""

    closed: ClassVar[bool] = False
    """Whether nobody but the user may ever read it, as of `write_atomically`."""

    def write(self, path: Path, *, sync_folder: bool = True) -> None:
        """Writes it, complete or not at all; `sync_folder` as of `write_atomically`."""
        write_atomically(path, json.dumps(asdict(self), indent=1), closed=self.closed, sync_folder=sync_folder)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What ``write`` wrote; None if it is not there, or cannot be read."""
        with suppress(OSError, Unreadable):
            return cls.load(path)
        return None

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """What ``write`` wrote; None if it is not there.

        Raises:
            Unreadable: it is something else, was written by another version, or may not be read.
            OSError: the file system does not answer.
        """
        try:
            raw = load_json(path)
            found: Self | None = None if raw is None else decode(cls, raw)
        except ValueError as exc:
            raise Unreadable(f"{path.name}: {exc}") from None
        except OSError as exc:
            if not concerns_one_file(exc):
                raise
            raise Unreadable(f"{path.name}: {exc.strerror}") from None
        return found


def _first_that_fits(kinds: tuple[Any, ...], raw: Any, place: str) -> Any:
    """By the first of several types that it is of; None is one of them."""
    if raw is None and NoneType in kinds:
        return None
    *first, last = (kind for kind in kinds if kind is not NoneType)
    for kind in first:
        with suppress(ValueError):
            return decode(kind, raw, place)
    return decode(last, raw, place)


def _one_of(values: tuple[Any, ...], raw: Any, place: str) -> Any:
    if raw not in values:
        raise ValueError(f"{_name(place)}{_shown(raw)} is not one of {', '.join(map(str, values))}")
    return raw


def _plain(kind: Any, raw: Any, place: str) -> Any:
    if kind is Any:
        return raw
    if kind is float and type(raw) is int and abs(raw) <= MAX_BIGINT:
        raw = float(raw)
    _require(kind, raw, place)
    if kind is float and not math.isfinite(raw):
        raise ValueError(f"{_name(place)}is not finite")
    return _in_range(raw, Within(-MAX_BIGINT, MAX_BIGINT), place) if kind is int else raw


def _require(kind: Any, raw: Any, place: str) -> Any:
    if type(raw) is not kind:
        names = {dict: "a JSON object", list: "a list", str: "text", bool: "a truth value"}
        raise ValueError(f"{_name(place)}{_shown(raw)} is not {names.get(kind, 'a number')}")
    return raw


def _in_range(value: Any, within: Within, place: str) -> Any:
    if not within.least <= value <= within.most:
        raise ValueError(f"{_name(place)}{_shown(value)} is out of range")
    return value


def _values(kind: Any, args: tuple[Any, ...], raw: Any, place: str) -> Iterator[Any]:
    values = _require(list, raw, place)
    kinds = [args[0]] * len(values) if kind is list or args[-1] is Ellipsis else args
    if len(kinds) != len(values):
        raise ValueError(f"{_name(place)}{len(values)} values instead of {len(kinds)}")
    for number, (one, value) in enumerate(zip(kinds, values, strict=True)):
        yield decode(one, value, f"{place}[{number}]")


def _key(kind: Any, key: str, place: str) -> Any:
    if kind is not int:
        return key
    if not (key.isdecimal() and len(key) < len(str(MAX_INT))):
        raise ValueError(f"{_name(place)}{_shown(key)} is not a number")
    return int(key)


def _record(kind: Any, raw: Any, place: str) -> Any:
    """A dataclass; an `exact` one refuses fields of a later version, which would change what runs."""
    types, required = _fields(kind)
    given = _require(dict, raw, place).keys()
    unknown = given - types.keys() if getattr(kind, "exact", False) else ()
    for what, names in (("unknown", unknown), ("missing", required - given)):
        if names:
            another = "written by another version of dscampaign?"
            raise ValueError(f"{_name(place)}{what} fields {_listed(names)}; {another}")
    return kind(**{n: decode(types[n], value, _below(place, n)) for n, value in raw.items() if n in types})


def _dictionary(kind: Any, raw: Any, place: str) -> dict[str, Any]:
    """A typed dictionary; keys that it does not declare stay as they are."""
    types, given = get_type_hints(kind, include_extras=True), _require(dict, raw, place)
    if names := kind.__required_keys__ - given.keys():
        raise ValueError(f"{_name(place)}missing fields {_listed(names)}")
    return {name: decode(types.get(name, Any), value, _below(place, name)) for name, value in given.items()}


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields, and the names of those without a default."""
    without = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}, frozenset(without)


def _below(place: str, name: str) -> str:
    return f"{place}.{name[:_SHOWN]}" if place else name[:_SHOWN]


def _name(place: str) -> str:
    return f"{place}: " if place else ""


def _listed(names: Collection[str]) -> str:
    return str([name[:_SHOWN] for name in sorted(names)[:_NAMED]])


def _shown(value: Any) -> str:
    """The beginning of a value, whatever it is: nested ones and long numbers have no text of their own."""
    if isinstance(value, dict):
        return "an object"
    if type(value) is int and abs(value) > MAX_BIGINT:
        return "a number of more than 64 bits"
    if isinstance(value, list):
        return "a list"
    found = json.dumps(value)
    return found if len(found) <= _SHOWN else f"{found[:_SHOWN]}…"
