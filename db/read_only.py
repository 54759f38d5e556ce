"""A SQLite file that this user may only read: a colleague's, or one that was put away."""

from __future__ import annotations

import os
import pwd
import sqlite3
from pathlib import Path
from urllib.parse import quote

from .errors import StoreBusy, StoreError, StoreReadOnly


def is_read_only(path: Path) -> bool:
    """Whether the file is there, and this process may not write it or make SQLite's own files beside it."""
    return path.exists() and not all(os.access(one, os.W_OK, effective_ids=True) for one in (path, path.parent))


class ReadOnlyFile:
    """Opens the file as one that nobody changes, where no log lies beside it: else SQLite would have to make one.

    That holds only while no writer comes, so `check` is asked after each transaction.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unchanged: tuple[int, int] | None = None  # size and time of a file that was opened as immutable

    def connect(self) -> sqlite3.Connection:
        """Raises StoreError if this user may not read it, or a writer left a log that only its owner can replay."""
        if not os.access(self.path, os.R_OK, effective_ids=True):
            raise StoreError(f"you may not read {self.path}", hint=f"ask {self.owner} for the right to read it")
        alone = not self._has_log()
        if not alone and not self._beside("-shm").exists() and self._beside("-wal").exists():
            hint = f"it was not closed cleanly: {self.owner} has to run `campaign status` once"
            raise StoreError(f"{self.path} cannot be read", hint=hint)
        self._unchanged = self._state() if alone else None
        options = "mode=ro&immutable=1" if alone else "mode=ro"
        address = f"file:{quote(str(self.path))}?{options}"
        return sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)

    def check(self) -> None:
        """Raises StoreBusy if a writer has come since the file was opened: what was read may be a mixture."""
        if self._unchanged is not None and (self._has_log() or self._state() != self._unchanged):
            raise StoreBusy(f"{self.path} changed while it was read", hint="try again")

    def refusal(self) -> StoreReadOnly:
        """The error of a command that would write."""
        return StoreReadOnly(
            f"{self.path} belongs to {self.owner}, and you may only read it",
            hint="status, report and the like work; to run campaigns, use a store of your own (--dir or --store)",
        )

    @property
    def owner(self) -> str:
        """The name of the user whose file it is."""
        user = self.path.stat().st_uid
        try:
            return pwd.getpwuid(user).pw_name
        except KeyError:
            return f"user {user}"

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _has_log(self) -> bool:
        return any(self._beside(suffix).exists() for suffix in ("-wal", "-journal"))

    def _state(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns
