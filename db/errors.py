"""Errors of the store, with hints for the user. Importing this costs nothing."""

from __future__ import annotations

import re
from typing import Any, Final


class StoreError(Exception):
    """The store cannot do its work: the reason, without any password, and the remedy, "" if there is none."""

    retryable = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def hint(self) -> str:
        """The remedy, also shown in tracebacks."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        self._hint = hint
        self.__notes__ = [f"hint: {hint}"] if hint else []


class StoreUnreachable(StoreError):
    """The database did not answer, or broke off: nothing was written, trying again is safe."""

    retryable = True


class StoreBusy(StoreUnreachable):
    """Another process held a lock for longer than the store waits."""


class StoreMissing(StoreError):
    """There is no database at this address yet."""


class StoreIncomplete(StoreError):
    """The database lacks a table, as while it is restored in place."""


class StoreReadOnly(StoreError):
    """This user may read the database, not write it, or must not run commands that others may have written into it."""


class SchemaMismatch(StoreError):
    """The database was made by another version of this program: it has the revision `found`, None for no schema."""

    def __init__(self, version: str | None, wanted: str) -> None:
        self.upgradable = (version or "") < wanted
        hint = "`campaign db upgrade`" if self.upgradable else "use the version that upgraded it, or a newer version"
        super().__init__(f"the store's schema is {version or 'absent'}, this program needs {wanted}", hint)
        self.found = version
        self.wanted = wanted


AWAY = (StoreUnreachable, StoreMissing, StoreIncomplete, StoreReadOnly)
"""Errors that may pass for a process that has used the store before."""


class StaleWrite(StoreError):
    """Another process changed a row that this write relied on: drop it and look again."""

    retryable = True


class StaleLease(StaleWrite):
    """The lease was taken over by another holder."""


_BUSY_SQLSTATES: Final = frozenset({"55P03", "40001", "40P01"})  # lock time-out, serialization, deadlock
_AWAY_SQLSTATES: Final = ("08", "25006", "25P03", "25P04", "53", "57P", "58")
"""The server is there and refuses for now, in any class of error of the driver: the connection broke, it is
read-only, as a standby is, it ended a transaction for its age, is short of connections, memory or disk, shuts down or
starts, has trouble with its files."""
TRY_AGAIN: Final = "nothing is lost: try again"

_WRONG_ADDRESS: Final = {
    r"database .* does not exist": "check the database's name in the store's address, or create it: `createdb NAME`",
    r"role .* does not exist|authentication failed|no password supplied|no pg_hba.conf entry": (
        "check the user in the store's address, and the password in ~/.pgpass or CAMPAIGN_STORE"
    ),
}
"""By PostgreSQL's message: lasting faults of an address, with a remedy."""

_HINTS: Final = {
    **_WRONG_ADDRESS,
    r"translate host name|resolve host|[Nn]ame or service not known|nodename nor servname": (
        "no host has this name: check the store's address"
    ),
    r"full|No space left|quota|disk I/O": "look whether its disk is full: metrics wait in files and are not lost",
}
"""By a driver's message: the remedy, if trying again is not enough."""


def first_line(error: BaseException | None) -> str:
    """Return the message of an error in one line."""
    return (str(error).strip().splitlines() or ["unknown error"])[0]


def refused_for_now(error: BaseException | None, driver: Any) -> bool:
    """Return whether the server or the file has trouble, rather than the rows to be written."""
    trouble = isinstance(error, (driver.OperationalError, driver.InterfaceError))
    return trouble or _sqlstate(error).startswith(_AWAY_SQLSTATES)


def lacks_grant(error: BaseException | None) -> bool:
    """Return whether PostgreSQL keeps the login from a table or a column, whichever the row.

    Policies of a row have the same SQLSTATE, and texts are in the server's language.
    """
    said_by = getattr(getattr(error, "diag", None), "source_function", None) or ""
    return _sqlstate(error) == "42501" and said_by.startswith("aclcheck_error")


def lacks_table(error: BaseException | None) -> bool:
    """Return whether a table is missing, or its schema."""
    return _sqlstate(error) in ("42P01", "3F000") or str(error).startswith("no such table: ")


def what_next(message: str) -> str:
    """Return the remedy for a database that did not answer."""
    return next((hint for words, hint in _HINTS.items() if re.search(words, message)), TRY_AGAIN)


def is_wrong_address(message: str) -> bool:
    """Return whether PostgreSQL rejects the address or the login."""
    return any(re.search(words, message) for words in _WRONG_ADDRESS)


def is_busy(error: BaseException | None) -> bool:
    """Return whether another process held a lock for too long."""
    return _sqlstate(error) in _BUSY_SQLSTATES


def _sqlstate(error: BaseException | None) -> str:
    return getattr(error, "sqlstate", None) or ""
