"""How this program talks to its two databases: addresses, locks, journal, time-outs."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

from .errors import StoreBusy, StoreError
from .file_systems import on_local_disk
from .storable import to_json

BUSY_TIMEOUT_S: Final = 30
"""How long a transaction waits for another one's lock, on both databases."""

_CONNECT_TIMEOUT_S: Final = 10
_POLL_S: Final = 0.002

BEGIN: Final = "campaign_begin"
"""The execution option that carries a SQLite transaction's first statement."""


def parse_url(text: str) -> URL:
    """Reads a store's address, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.

    Raises:
        StoreError: It is neither.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        # `from None`: the original could quote a password.
        raise StoreError("the store's address is not a URL", hint="sqlite:///FILE or postgresql://HOST/NAME") from None
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"{backend} is not a store", hint="use sqlite:///FILE or postgresql://HOST/NAME")
    if not url.database or url.database == ":memory:":
        raise StoreError("a store in memory would be gone with the process", hint="name a file: sqlite:///FILE")
    return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))


def without_password(url: URL) -> str:
    """The address without its password, fit for logs, job scripts and payloads."""
    return url._replace(password=None).difference_update_query(["password"]).render_as_string(hide_password=False)


def make_engine(url: URL) -> Engine:
    """Makes the engine of a parsed address; connects to nothing yet."""
    common: dict[str, Any] = {"hide_parameters": True, "json_serializer": to_json, "pool_size": 1, "max_overflow": 4}
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, **common)
        _listen_sqlite(engine, "WAL" if on_local_disk(Path(str(url.database))) else "DELETE")
        return engine
    settings = _postgres_settings()
    return create_engine(url, connect_args=settings, pool_pre_ping=True, use_native_hstore=False, **common)


@contextmanager
def one_writer(url: URL, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[None]:
    """Holds the lock beside a SQLite file that every writer holds; the kernel lets go of it when the process dies.

    SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection writes while another one, right after its commit,
    moves the log back into the file. BEGIN IMMEDIATE does not cover that moment; a lock held until the commit has
    returned does.

    Raises:
        StoreBusy: Another writer held it for all that time.
    """
    path = Path(f"{url.database}-writer")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(fd, path, timeout_s)
        yield
    finally:
        os.close(fd)


def _postgres_settings() -> dict[str, Any]:
    lock_ms = BUSY_TIMEOUT_S * 1000
    return {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "application_name": "dscampaign",
        # A server that vanished is noticed, and a client that was stopped in mid-transaction loses its locks.
        "keepalives_idle": 30,
        "tcp_user_timeout": lock_ms,
        "options": f"-c lock_timeout={lock_ms} -c idle_in_transaction_session_timeout={2 * lock_ms}",
    }


def _acquire(fd: int, path: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise StoreBusy(f"another process held {path.name} for {timeout_s:g} s") from None
            time.sleep(_POLL_S)


def _listen_sqlite(engine: Engine, journal: str) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver starts no transaction of its own
        connection.execute("PRAGMA foreign_keys = ON")
        found = connection.execute("PRAGMA journal_mode").fetchone()[0]
        if found.upper() != journal:
            with one_writer(engine.url):
                connection.execute(f"PRAGMA journal_mode = {journal}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))
