"""Dataclasses as JSON: written whole to files, and read back by the types of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from .files import read_json, write_atomically


def decode(kind: Any, raw: Any) -> Any:
    """A value of a type, from what JSON made of it: dataclasses, tuples and mappings of them, and what JSON has itself.

    Raises:
        ValueError: a dataclass has no such field, or lacks one: another version wrote it.
        TypeError, AttributeError: what stands for a dataclass, a tuple or a mapping is none.
    """
    if isinstance(kind, UnionType):  # X | None
        kind = get_args(kind)[0]
    if raw is None:
        return None
    if is_dataclass(kind):
        return _record(kind, raw)
    if get_origin(kind) is tuple:
        return tuple(decode(get_args(kind)[0], value) for value in raw)
    if get_origin(kind) in (dict, Mapping):
        key_kind, value_kind = get_args(kind)
        return {key_kind(key): decode(value_kind, value) for key, value in raw.items()}
    return raw


@dataclass(frozen=True)
class Document:
    """A dataclass that is kept in a file."""

    def write(self, path: Path) -> None:
        """Writes it, complete or not at all, readable by its owner only."""
        write_atomically(path, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """What ``write`` wrote; None if it is not there.

        Raises:
            ValueError: it was written by another version.
        """
        found: Self | None = decode(cls, read_json(path))
        return found


def _record(kind: Any, raw: Any) -> Any:
    types, required = _fields(kind)
    if not isinstance(raw, dict):
        raise TypeError(f"{kind.__name__}: no JSON object")
    for what, names in (("unknown", raw.keys() - types.keys()), ("missing", required - raw.keys())):
        if names:
            another = "written by another version of dscampaign?"
            raise ValueError(f"{kind.__name__}: {what} fields {sorted(names)}; {another}")
    return kind(**{name: decode(types[name], value) for name, value in raw.items()})


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields, and the names of those without a default."""
    without = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return get_type_hints(kind), frozenset(without)
