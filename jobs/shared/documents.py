"""Dataclasses as JSON documents, read back by the types of their fields."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from dscampaign.db.storable import MAX_INT, MAX_TIME_S, MAX_WHOLE
from dscampaign.files.atomic_files import load_json, write_atomically
from dscampaign.files.private_files import concerns_one_file

T = TypeVar("T")
Time = Annotated[float, Field(ge=0, le=MAX_TIME_S)]  # a moment, in seconds since 1970
Whole = Annotated[int, Field(ge=0, le=MAX_WHOLE)]  # steps or bytes
Count = Annotated[int, Field(ge=1, le=MAX_INT)]  # at least one
Number = Annotated[int, Field(ge=-MAX_INT, le=MAX_INT)]  # an exit code, a process, a rank
EXACT: Final = ConfigDict(allow_inf_nan=False, extra="forbid")
"""For `__pydantic_config__` of a class that has no fields of other versions."""

_OF_ANOTHER_VERSION: Final = ("missing", "unexpected_keyword_argument")
_SHOWN: Final = 40  # characters of a wrong value
_adapter: Final = cache(TypeAdapter[Any])


class Unreadable(ValueError):
    """A file does not hold its record; the message names the file and the first error."""


def decode(kind: type[T], raw: object) -> T:
    """Return a value of a type from its parsed JSON, without conversions: text is no number. Raises ValueError."""
    content = json.dumps(raw, ensure_ascii=False).encode(errors="replace")  # halves of surrogate pairs
    try:
        value: T = _adapter(kind).validate_json(content, strict=True)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as exc:
        raise ValueError(_reason(exc)) from None
    return value


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key[:_SHOWN]}" for key in first["loc"]).lstrip(".")
    if first["type"] in _OF_ANOTHER_VERSION:
        return f"{place}: {first['msg']}; written by another version of dscampaign?"
    return f"{place}: {first['msg']}, not {str(first['input'])[:_SHOWN]!r}"


@dataclass(frozen=True)
class Document:
    """A dataclass that is kept in a file. Unknown fields, of a later version, are left out."""

    __pydantic_config__: ClassVar = ConfigDict(allow_inf_nan=False)
    closed: ClassVar[bool] = False  # whether nobody but the user may ever read it, as of `write_atomically`

    def write(self, path: Path) -> None:
        """Write it, complete or not at all."""
        write_atomically(path, json.dumps(asdict(self), indent=1), closed=self.closed)

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
            return None if raw is None else decode(cls, raw)
        except ValueError as exc:
            raise Unreadable(f"{path.name}: {exc}") from None
        except OSError as exc:
            if not concerns_one_file(exc):
                raise
            raise Unreadable(f"{path.name}: {exc.strerror}") from None
