"""The context of the running command: the place for its hints, which can be pasted, and its progress."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from .settings import Settings

SPEC: Final = "SPEC"
"""Stands for the spec of the running command and its overrides."""

CARRIED: Final = frozenset({"command line", "spec"})
"""Sources of `dir` and `store` that the next command does not have by itself."""

_WITHOUT_PLACE: Final = frozenset({"completion", "diagnose", "init", "schema", "validate"})
_FILE: Final = "sqlite:///"


@dataclass(frozen=True)
class _Given:
    """The place of the campaign of the running command, and its spec with the overrides."""

    settings: Settings | None = None
    spec: tuple[str, ...] = (SPEC,)


_GIVEN: Final[ContextVar[_Given | None]] = ContextVar("given", default=None)


@contextmanager
def running() -> Iterator[None]:
    """Run a command, whose place and spec complete the commands that it prints."""
    token = _GIVEN.set(_Given())
    try:
        yield
    finally:
        _GIVEN.reset(token)


def located(settings: Settings, spec: Path | None) -> None:
    """Remembers the place of the campaign of the running command."""
    if context := _GIVEN.get():
        _GIVEN.set(replace(context, settings=settings, spec=(str(spec),) if spec else context.spec))


def overridden(sets: Sequence[str]) -> None:
    """Remembers the overrides of the spec of the running command."""
    if context := _GIVEN.get():
        _GIVEN.set(replace(context, spec=(*context.spec, *(word for text in sets for word in ("--set", text)))))


def typed(verb: str, *words: str) -> str:
    """The command as it is typed, with the place of the campaign: `campaign status sweep --dir /shared/campaign`."""
    context = _GIVEN.get() or _Given()
    whole = [part for word in words for part in (context.spec if word == SPEC else (word,))]
    for origin in context.settings.shown if context.settings and verb not in _WITHOUT_PLACE else ():
        if origin.name in ("dir", "store") and origin.source in CARRIED:
            file = origin.value.removeprefix(_FILE)
            is_file = file and file != origin.value
            whole += [f"--{origin.name}", f"{_FILE}{Path(file).absolute()}" if is_file else origin.value]
    return " ".join(["campaign", *verb.split(), *map(shlex.quote, whole)])


_Item = TypeVar("_Item")

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
    """Yield the items; each counts as done when the next is requested. Items with a length have a total, too.

    `noun` is in the plural; `size` returns how many an item counts for, by default 1.
    """
    shown = _SHOWN.get()
    return iter(items) if shown is None else shown(items, noun, size)


def in_pieces(noun: str, items: Sequence[_Item], most: int = 1000) -> Iterator[Sequence[_Item]]:
    """Yield at `most` so many items at a time, with progress as of `counted`."""
    return counted(noun, [items[start : start + most] for start in range(0, len(items), most)], len)
