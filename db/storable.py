"""Makes text, numbers and JSON from jobs acceptable to every database. Standard library only."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeGuard

MAX_WHOLE: Final = 2**53  # beyond, a float skips whole numbers
MAX_INT: Final = 2**31 - 1  # the largest number of an INTEGER column
MAX_BIGINT: Final = 2**63 - 1

MAX_TIME_S: Final = 253_370_764_800.0  # seconds since 1970 until the year 9999, the last that a calendar here knows
MAX_TEXT: Final = 1 << 16  # characters of a message or a reason that are kept
MAX_DEPTH: Final = 32  # levels of JSON that are kept; Python itself reads no more than a few hundred
_CUT: Final = " …"
_TOO_DEEP: Final = "(nested too deep)"
_SUSPECT: Final = re.compile(r"[\\0-9](?:u(?:0000|d[89a-f])|[0-9]{18})")
"""In the JSON of a value: text that some database refuses, or a number that is not finite."""

_ENCODER: Final = json.JSONEncoder(allow_nan=False)


def text(value: str, longest: int | None = None) -> str:
    """Return text without NUL and without halves of surrogate pairs, cut to so many characters."""
    if longest is not None and len(value) > longest:
        value = value[: longest - len(_CUT)] + _CUT
    plain = value.isascii() and "\0" not in value
    return value if plain else value.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def to_json(value: object) -> str:
    """Return JSON that every database takes and every reader reads.

    Numbers that are not finite or above 64 bits become text, text is made storable, and levels beyond ``MAX_DEPTH`` are
    left out.
    """
    try:
        text = _ENCODER.encode(value)
    except (ValueError, RecursionError):
        return _ENCODER.encode(_plain(value))
    nested = text.count("{") + text.count("[") > MAX_DEPTH
    return _ENCODER.encode(_plain(value)) if nested or _SUSPECT.search(text) else text


def is_whole(value: object, least: int = 0, most: int = MAX_WHOLE) -> TypeGuard[int]:
    """Return whether it is a whole number in a range."""
    return type(value) is int and least <= value <= most


def is_time(value: object) -> TypeGuard[float]:
    """Return whether it is a moment in seconds since 1970."""
    return type(value) in (int, float) and 0 <= value <= MAX_TIME_S  # type: ignore[operator]


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if abs(value) <= MAX_BIGINT else text(hex(value), 100)
    if isinstance(value, dict | list | tuple) and depth >= MAX_DEPTH:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {text(k) if isinstance(k, str) else k: _plain(item, depth + 1) for k, item in value.items()}
    return [_plain(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value
