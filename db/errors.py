"""Errors of the store, with hints for the user. Importing this costs nothing."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do its work.

    Args:
        message: the reason, without any password.
        hint: the remedy; "" if there is none.
    """

    retryable = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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

    def __init__(self, found: str | None, wanted: str) -> None:
        super().__init__(
            f"the store's schema is {found or 'absent'}, this program needs {wanted}",
            hint="`campaign db upgrade`"
            if (found or "") < wanted
            else "use the version that upgraded it, or a newer version",
        )
        self.upgradable = (found or "") < wanted
        self.found = found
        self.wanted = wanted


AWAY = (StoreUnreachable, StoreMissing, StoreIncomplete, StoreReadOnly)
"""Errors that may pass for a process that has used the store before."""


class StaleWrite(StoreError):
    """Another process changed a row that this write relied on: drop it and look again."""

    retryable = True


class StaleLease(StaleWrite):
    """The lease was taken over by another holder."""
