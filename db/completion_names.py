"""The names that a shell completes, read by the driver alone: to load SQLAlchemy takes longer than a key may.

`queries` knows the same names; a test compares the two.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final

from .errors import StoreError
from .read_only import ReadOnlyFile, store_doubt

_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///(?P<file>[^?]+)")
_POSTGRES: Final = re.compile(r"^postgres(?:ql)?(?:\+\w+)?://")
_SERVER_S: Final = 1.0
_FILE_S: Final = 3.0
_LOCK_MS: Final = 200

_NAME: Final = re.compile(r"[A-Za-z0-9._/+][A-Za-z0-9._/+-]*")
_CAMPAIGNS: Final = "SELECT id, name FROM campaign ORDER BY id"
_RUNS: Final = "SELECT name FROM run WHERE campaign_id = {} ORDER BY ordinal, id"


def read_names(url: str, campaign: str | None = None, *, with_runs: bool) -> dict[str, list[str]]:
    """By campaign, of the named one or of all, the names of its runs. Writes nothing, and waits for seconds at most.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.
        campaign: its name, None for all.
        with_runs: Whether to read the runs as well; else each campaign has none.

    Raises:
        StoreError: The store cannot be read, or does not answer in time.
        ImportError: The driver of PostgreSQL is not installed.
    """
    file = _SQLITE.match(url)
    if not file:
        import psycopg  # noqa: F401 - this takes its time too, which is not the server's
    found: list[dict[str, list[str]]] = []

    def read() -> None:
        with suppress(Exception):  # of each driver other ones, and none of them is told to anybody
            found.append(
                _from_file(file["file"], campaign, with_runs) if file else _from_server(url, campaign, with_runs)
            )

    # A name server or a file system may hold up a call for minutes that has no time limit of its own.
    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(_FILE_S if file else _SERVER_S)
    if not found:
        raise StoreError("the store cannot be read")
    return found[0]


def _from_file(path: str, campaign: str | None, with_runs: bool) -> dict[str, list[str]]:
    if doubt := store_doubt(Path(path).absolute()):
        raise doubt
    file = ReadOnlyFile(Path(path).absolute())
    connection = file.connect()
    try:
        connection.execute(f"PRAGMA busy_timeout = {_LOCK_MS}")
        connection.execute("BEGIN")
        names = _names(connection, campaign, with_runs)
    finally:
        connection.close()
    file.check()
    return names


def _from_server(url: str, campaign: str | None, with_runs: bool) -> dict[str, list[str]]:
    import psycopg

    with psycopg.connect(_POSTGRES.sub("postgresql://", url), connect_timeout=int(_SERVER_S)) as connection:
        connection.read_only = True
        return _names(connection, campaign, with_runs)


def _names(connection: Any, campaign: str | None, with_runs: bool) -> dict[str, list[str]]:
    """Return what a connection of either driver finds, without names that a shell may not take for one word."""
    known = [(int(key), name) for key, name in connection.execute(_CAMPAIGNS) if campaign in (None, name)]
    return {
        name: [run for (run,) in connection.execute(_RUNS.format(key)) if is_plain(run)] if with_runs else []
        for key, name in known
        if is_plain(name)
    }


def is_plain(name: str) -> bool:
    """Whether a name is one word to a shell, and no option to a command."""
    return _NAME.fullmatch(name) is not None
