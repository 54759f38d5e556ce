"""Group failures of the same cause: forty runs fail of it, each with a text of its own. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Final, TypeVar

from .policy import FailureClass

T = TypeVar("T")

_OF_MANY_CAUSES: Final = frozenset({None, "", FailureClass.CRASH, FailureClass.DETERMINISTIC, FailureClass.REFUSED})
"""Classes that hold many causes: only the text separates them. All others name the cause, with their rule."""

_COMPARED: Final = 120
"""Characters of a text without its details that are compared."""

_DETAIL: Final = re.compile(r"[\d/]|^\W*[0-9a-fA-F]{8,}\W*$")
"""A number, a path, an address, or a name with a number."""

_OMITTED: Final = frozenset("# and or B bytes kB KB MB GB TB KiB MiB GiB TiB K M G T s ms".split())  # noqa: SIM905
"""May follow a detail: its unit, or the rest of a list."""


@lru_cache  # ten thousand runs may have the same text
def gist(text: str) -> str:
    """Return a text without details of a run: numbers, sizes, paths, addresses and names that hold a number."""
    words: list[str] = []
    for word in text[: 2 * _COMPARED].split():
        plain = "#" if _DETAIL.search(word) else word
        if not (words and words[-1] == "#" and plain.strip(".,;:()") in _OMITTED):
            words.append(plain)
    return " ".join(words)[:_COMPARED]


def cause(kind: str | None, rule: str, reason: str, name: str = "") -> Hashable:
    """Return a key of the cause, equal for all ends of that cause; `name` is the run's, which its reason may hold."""
    if kind not in _OF_MANY_CAUSES:
        return kind, rule
    return kind, rule, gist(reason.replace(name, "#") if name else reason)


def alike(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items with equal keys; groups and items keep their order."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
