"""What may happen between any two effects of a pass: death, a long sleep, an error, or the world moving on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from dscampaign.db.errors import StoreUnreachable
from dscampaign.db.ingest import reader, spool
from dscampaign.db.store import Store
from dscampaign.files import atomic_files, private_files

FILE_EFFECTS = ("write_atomically", "create_exclusively", "make_private", "make_below")
REAL: dict[str, Callable[..., Any]] = {
    name: vars(home)[name] for home in (private_files, atomic_files) for name in FILE_EFFECTS if name in vars(home)
}


class Killed(BaseException):
    """The process died here."""


class Effects:
    """Counts the effects of one pass and lets one thing happen at the n-th.

    A store transaction, a file and a word to the cluster have a moment before and one after them.

    Attributes:
        happened: whether it has.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._left = 0
        self._accident: Callable[[Exception], None] | None = None
        self._at_each: Callable[[], None] | None = None
        self._writing = False
        self.happened = False
        patch.setattr(Store, "write", self._store_write(Store.write))
        patch.setattr(Store, "read", self._store_read(Store.read))
        patch.setattr(spool, "read_on", self._read(reader.read_on))
        for module, name, real in _users_of_files():
            # the folder of a new campaign is marked before the commit, for without it the campaign could never begin
            patch.setattr(module, name, self._file(real, locked=module.__name__.endswith(".campaign_folder")))

    @contextmanager
    def expecting(self, number: int, accident: Callable[[Exception], None] | None) -> Iterator[None]:
        """The accident happens at the effect of that number, from 1; it gets the usual error, which it may raise."""
        self._left, self._accident, self.happened = number, accident, False
        try:
            yield
        finally:
            self._accident = None

    @contextmanager
    def each_taking(self, happens: Callable[[], None]) -> Iterator[None]:
        """At every effect of the pass something happens that is no part of it."""
        self._at_each = happens
        try:
            yield
        finally:
            self._at_each = None

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What happens in here is the cluster's work: neither its time nor its accidents are the pass's."""
        kept, self._accident, self._at_each = (self._accident, self._at_each), None, None
        try:
            yield
        finally:
            self._accident, self._at_each = kept

    def moment(self, usual: Exception) -> None:
        """A moment between two effects."""
        if happens := self._at_each:
            self._at_each = None
            happens()
            self._at_each = happens
        if self._accident is None:
            return
        self._left -= 1
        if self._left == 0:
            accident, self._accident = self._accident, None  # what it does itself is not part of the pass
            self.happened = True
            accident(usual)

    def _store_write(self, real: Any) -> Any:
        @contextmanager
        def write(store: Store) -> Iterator[Connection]:
            self.moment(StoreUnreachable("away"))
            with real(store) as conn:
                self._writing = True
                try:
                    yield conn
                finally:
                    self._writing = False
            self.moment(StoreUnreachable("lost while it committed"))

        return write

    def _store_read(self, real: Any) -> Any:
        @contextmanager
        def read(store: Store) -> Iterator[Connection]:
            self.moment(StoreUnreachable("away"))
            with real(store) as conn:
                yield conn

        return read

    def _read(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self.moment(OSError(5, "Input/output error"))
            return real(*args)

        return wrapped

    def _file(self, real: Callable[..., Any], *, locked: bool) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            assert locked or not self._writing, (
                "a file is written while the store's lock is held: who is slow stops everybody"
            )
            self.moment(OSError(28, "No space left on device"))
            result = real(*args, **options)
            self.moment(OSError(5, "Input/output error"))
            return result

        return wrapped


def _users_of_files() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Where the reconciler's side writes files: every module that has taken one of the functions by name."""
    ours: list[Any] = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("dscampaign.orchestrator.") or name == "dscampaign.jobs.shared.documents"
    ]
    return [(module, name, real) for module in ours for name, real in REAL.items() if vars(module).get(name) is real]
