"""The progress of long work, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

_Item = TypeVar("_Item")

_PIECE: Final = 1000


Through = Callable[[Iterable[Any], str, Callable[[Any], int] | None], Iterator[Any]]
"""Hands on items as `counted` does, and shows their progress."""

_SHOWN: ContextVar[Through | None] = ContextVar("progress", default=None)


@contextmanager
def shown_by(shown: Through | None) -> Iterator[None]:
    """Show the progress of the work inside, or nothing."""
    before = _SHOWN.set(shown)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def counted(noun: str, items: Iterable[_Item], size: Callable[[_Item], int] | None = None) -> Iterator[_Item]:
    """The items one by one; each counts as done when the next is asked for. Items with a length have a total, too.

    Args:
        noun: the counted things, in the plural.
        items: to work on.
        size: how many an item counts for, one unless given.
    """
    shown = _SHOWN.get()
    return iter(items) if shown is None else shown(items, noun, size)


def in_pieces(noun: str, items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """A thousand of the items at a time, counted as `counted` does."""
    parts = [items[start : start + _PIECE] for start in range(0, len(items), _PIECE)]
    return counted(noun, parts, len)
