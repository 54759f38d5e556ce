"""The progress of long work, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

_Item = TypeVar("_Item")

_PIECE: Final = 1000


class Shown(Protocol):
    """Shows how far some work is."""

    def through(self, items: Iterable[_Item], noun: str, size: Callable[[_Item], int] | None) -> Iterator[_Item]:
        """As `counted`."""


_SHOWN: ContextVar[Shown | None] = ContextVar("progress", default=None)


@contextmanager
def shown_by(shown: Shown | None) -> Iterator[None]:
    """Show there the progress of the work inside, or nowhere."""
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
    return iter(items) if shown is None else shown.through(items, noun, size)


def in_pieces(noun: str, items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """A thousand of the items at a time, counted as `counted` does."""
    parts = [items[start : start + _PIECE] for start in range(0, len(items), _PIECE)]
    return counted(noun, parts, len)
