"""A SQLite file that is only read: a colleague's, an archive, or a file that others may have written.

Commands from a store are run, so it must be the user's own. A store that is only shown may be anybody's.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dscampaign.files.ownership import Distrusted, distrust, user_name

from .errors import StoreBusy, StoreError, StoreReadOnly

LOGS: Final = ("-journal", "-wal", "-shm")  # files of SQLite beside a database: the first two are replayed into it
_PRECAUTIONS: Final = ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON")
"""The advice of SQLite's authors for a file that somebody else may have made."""


def read_only(path: Path) -> ReadOnlyFile | None:
    """Return the file if this process may not write it, or SQLite's own files beside it, or must not trust it."""
    try:
        if not path.exists():
            return None
        if path.is_dir():
            raise StoreError(f"{path} is a folder, and a store is a file", hint="name a file: sqlite:///FILE")
    except PermissionError:
        raise StoreError(f"you may not read {path}", hint="ask its owner to run `campaign share`") from None
    if not all(os.access(place, os.W_OK, effective_ids=True) for place in (path, path.parent)):
        return ReadOnlyFile(path)
    doubt = store_doubt(path)
    return ReadOnlyFile(path, doubt) if doubt else None


def store_doubt(path: Path) -> Distrusted | None:
    """Return why the content of a store, which need not exist yet, must not be run; None if it is this user's alone.

    Its folder must be this user's own: in a public folder, even a sticky one, others could put a journal beside it.
    """
    if path.is_symlink():
        if doubt := distrust(path):
            return doubt
        path = path.resolve()  # where SQLite keeps its own files
    for place in (path.parent, path):
        with suppress(FileNotFoundError):
            if doubt := distrust(place, path.parent.parent):
                return doubt
    return None


def beside(path: Path, suffix: str) -> Path:
    """Return a file that belongs to a database."""
    return path.with_name(path.name + suffix)


class ReadOnlyFile:
    """Opens the file as unchanging if no log lies beside it: else SQLite would have to create a log.

    That holds only while no writer comes: call `check` after each transaction. `doubt` is the reason not to write it,
    if this user has the right to.
    """

    def __init__(self, path: Path, doubt: Distrusted | None = None) -> None:
        self.path = path
        self._doubt = doubt
        self._unchanged: tuple[int, int] | None = None  # size and time of a file that was opened as immutable

    def connect(self) -> sqlite3.Connection:
        """Raise StoreError if this user may not read it, or a writer left a log that only its owner can replay."""
        if not os.access(self.path, os.R_OK, effective_ids=True):
            raise StoreError(f"you may not read {self.path}", hint=f"ask {self.owner} to run `campaign share`")
        alone = not self._has_log()
        if not alone and not beside(self.path, "-shm").exists() and beside(self.path, "-wal").exists():
            hint = f"it was not closed cleanly: {self.owner} has to run `campaign status` once"
            raise StoreError(f"{self.path} cannot be read", hint=hint)
        self._unchanged = self._state() if alone else None
        options = "mode=ro&immutable=1" if alone else "mode=ro"
        address = f"file:{quote(str(self.path))}?{options}"
        connection = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
        for precaution in _PRECAUTIONS:
            connection.execute(f"PRAGMA {precaution}")
        return connection

    def check(self) -> None:
        """Raise StoreBusy if a writer has come since the file was opened: the rows may be a mixture."""
        if self._unchanged is not None and (self._has_log() or self._state() != self._unchanged):
            raise StoreBusy(f"{self.path} changed while it was read", hint="try again")

    def refusal(self) -> StoreReadOnly:
        """Return the error of a command that would write."""
        if self._doubt:
            hint = f"{self._doubt.hint}, or --store; status, report and the like work"
            return StoreReadOnly(f"nothing is run from {self.path}: {self._doubt}", hint)
        return StoreReadOnly(
            f"{self.path} belongs to {self.owner}, and you may only read it",
            hint="status, report and the like work; to run campaigns, use a store of your own (--dir or --store)",
        )

    @property
    def owner(self) -> str:
        """The name of the file's owner."""
        return user_name(self.path.stat().st_uid)

    def _has_log(self) -> bool:
        return any(beside(self.path, suffix).exists() for suffix in ("-wal", "-journal"))

    def _state(self) -> tuple[int, int]:
        info = self.path.stat()
        return info.st_size, info.st_mtime_ns
