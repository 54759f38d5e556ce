"""Dataclasses as JSON documents, read back by the types of their fields."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
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
    NoReturn,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from dscampaign.db.storable import MAX_BIGINT, MAX_INT, MAX_TIME_S, MAX_WHOLE
from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.files.private_files import concerns_one_file


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
"""At least one."""

Number = Annotated[int, Within(-MAX_INT, MAX_INT)]
"""An exit code, a process, a rank."""

_SHOWN: Final = 40  # characters of a wrong value
_NAMED: Final = 8
_KINDS: Final = {dict: "a JSON object", list: "a list", str: "text", bool: "a truth value"}


class Unreadable(ValueError):
    """A file does not hold its record; the message names the file and the first error."""


def decode(kind: Any, raw: Any, place: str = "") -> Any:
    """Return a value of a type from its JSON.

    Args:
        kind: a dataclass or a typed dictionary, a tuple, list or mapping of types, text, a number (whole numbers have
            64 bits, others are finite), a truth value, a literal, or any of these or None. An annotation narrows it to
            a range, or any dictionary to a typed one.

    Raises:
        ValueError: it is not of that type, or a dataclass lacks a field, or has an unknown field and is `exact`.
    """
    origin, args = _form(kind)
    if origin in (UnionType, Union):
        return _first_that_fits(args, raw, place)
    if origin is Literal:
        return raw if raw in args else _wrong(place, raw, f"is not among {', '.join(map(str, args))}")
    if origin is Annotated and isinstance(args[1], Within):
        return _in_range(decode(args[0], raw, place), args[1], place)
    if origin is Annotated:
        return decode(args[1], raw, place)
    return _read(kind, origin, args, raw, place)


@cache
def _form(kind: Any) -> tuple[Any, tuple[Any, ...]]:  # cached: one record has hundreds of values
    return get_origin(kind), get_args(kind)


@dataclass(frozen=True)
class Document:
    """A dataclass that is kept in a file."""

    closed: ClassVar[bool] = False
    """Whether nobody but the user may ever read it, as of `write_atomically`."""

    def write(self, path: Path, *, sync_folder: bool = True) -> None:
        """Write it, complete or not at all; `sync_folder` as of `write_atomically`."""
        write_atomically(path, json.dumps(asdict(self), indent=1), closed=self.closed, sync_folder=sync_folder)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the document in a file; None if there is none, or it cannot be read."""
        with suppress(OSError, Unreadable):
            return cls.load(path)
        return None

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the document in a file; None if there is none.

        Raises:
            Unreadable: it is something else, was written by another version, or may not be read.
            OSError: the file system does not answer.
        """
        try:
            raw = load_json(path)
            document: Self | None = None if raw is None else decode(cls, raw)
        except ValueError as exc:
            raise Unreadable(f"{path.name}: {exc}") from None
        except OSError as exc:
            if not concerns_one_file(exc):
                raise
            raise Unreadable(f"{path.name}: {exc.strerror}") from None
        return document


def _read(kind: Any, origin: Any, args: tuple[Any, ...], raw: Any, place: str) -> Any:
    if origin in (tuple, list):
        return _values(origin, args, raw, place)
    if origin in (dict, Mapping):
        items = _require(dict, raw, place).items()
        return {_key(args[0], key, place): decode(args[1], value, _below(place, key)) for key, value in items}
    return _record(kind, raw, place) if is_dataclass(kind) or is_typeddict(kind) else _plain(kind, raw, place)


def _values(origin: Any, args: tuple[Any, ...], raw: Any, place: str) -> Any:
    values = _require(list, raw, place)
    kinds = args if origin is tuple and args[-1] is not Ellipsis else [args[0]] * len(values)
    if len(kinds) != len(values):
        _wrong(place, raw, f"has {len(values)} values instead of {len(kinds)}")
    pairs = enumerate(zip(kinds, values, strict=True))
    return origin(decode(kind, value, f"{place}[{number}]") for number, (kind, value) in pairs)


def _first_that_fits(kinds: tuple[Any, ...], raw: Any, place: str) -> Any:
    if raw is None and NoneType in kinds:
        return None
    *first, last = (kind for kind in kinds if kind is not NoneType)
    for kind in first:
        with suppress(ValueError):
            return decode(kind, raw, place)
    return decode(last, raw, place)


def _record(kind: Any, raw: Any, place: str) -> Any:
    """Return a dataclass, or a typed dictionary, which keeps undeclared keys as they are."""
    types, required = _fields(kind)
    fields = _require(dict, raw, place)
    unknown = fields.keys() - types.keys() if getattr(kind, "exact", False) else ()
    for state, names in (("unknown", unknown), ("missing", required - fields.keys())):
        if names:
            listed = [name[:_SHOWN] for name in sorted(names)[:_NAMED]]
            raise ValueError(f"{_prefix(place)}{state} fields {listed}; written by another version of dscampaign?")
    values = {name: decode(types[name], fields[name], _below(place, name)) for name in types if name in fields}
    return {**fields, **values} if is_typeddict(kind) else kind(**values)


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], Collection[str]]:
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return hints, kind.__required_keys__
    without = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return {f.name: hints[f.name] for f in fields(kind)}, frozenset(without)


def _plain(kind: Any, raw: Any, place: str) -> Any:
    if kind is Any:
        return raw
    if kind in (int, float) and type(raw) is int and abs(raw) > MAX_BIGINT:
        raise ValueError(f"{_prefix(place)}a number of more than 64 bits is out of range")
    value = _require(kind, float(raw) if kind is float and type(raw) is int else raw, place)
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{_prefix(place)}is not finite")
    return value


def _require(kind: Any, raw: Any, place: str) -> Any:
    return raw if type(raw) is kind else _wrong(place, raw, f"is not {_KINDS.get(kind, 'a number')}")


def _in_range(value: Any, within: Within, place: str) -> Any:
    return value if within.least <= value <= within.most else _wrong(place, value, "is out of range")


def _key(kind: Any, key: str, place: str) -> Any:
    if kind is not int:
        return key
    return int(key) if key.isdecimal() and len(key) < len(str(MAX_INT)) else _wrong(place, key, "is not a number")


def _wrong(place: str, value: Any, reason: str) -> NoReturn:
    """Raise ValueError with the beginning of a value; nested values have no text."""
    shown = "an object" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    raise ValueError(f"{_prefix(place)}{shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}…'} {reason}")


def _below(place: str, name: str) -> str:
    return f"{place}.{name[:_SHOWN]}" if place else name[:_SHOWN]


def _prefix(place: str) -> str:
    return f"{place}: " if place else ""
