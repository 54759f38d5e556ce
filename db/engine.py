"""Addresses, locks, journal and time-outs of the two databases."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from dscampaign.files.file_systems import on_local_disk
from dscampaign.files.private_files import open_private

from .errors import StoreBusy, StoreError
from .read_only import LOGS, ReadOnlyFile, beside
from .storable import to_json

BUSY_TIMEOUT_S: Final = 30  # how long a transaction waits for another's lock, on both databases
_POSTGRES: Final = {
    "connect_timeout": 10,
    "application_name": "dscampaign",
    "client_encoding": "utf8",  # whatever the shell, the role or the address asks for
    "prepare_threshold": None,  # behind a pooler the next transaction may be another server process's
    # A server that vanished is noticed.
    "keepalives_idle": 30,
    "tcp_user_timeout": BUSY_TIMEOUT_S * 1000,
}
_HARMLESS_OPTIONS: Final = frozenset(
    """application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssencmode host
    hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname load_balance_hosts mode options
    passfile port require_auth requirepeer service sslcert sslcertmode sslcrl sslcrldir sslkey sslmode sslrootcert
    sslsni ssl_max_protocol_version ssl_min_protocol_version target_session_attrs tcp_user_timeout user""".split()  # noqa: SIM905
)
_POLL_S: Final = 0.002
TABLES: Final = frozenset({"campaign", "run", "attempt"})  # of every version
_FORMS: Final = "sqlite:///FILE or postgresql://HOST/NAME"
_ENCODE: Final = "percent-encode the password: @ is %40, / is %2F, : is %3A; or keep it in ~/.pgpass"
_MAKE_UTF8: Final = (
    "make a database: `createdb --template=template0 --encoding=UTF8 NAME`; an old store moves by `pg_dump -E UTF8`"
)

BEGIN: Final = "campaign_begin"  # the execution option that carries a SQLite transaction's first statement


def parse_url(text: str) -> URL:
    """Read a store's address; raises StoreError if it is none, or has an `@` that may belong to a password."""
    url = _parsed(text)
    if url is None:
        hint = f"{_FORMS}; {_ENCODE}" if "@" in text else _FORMS
        raise StoreError("the store's address is not a URL in UTF-8", hint)
    if _hides_password(url, text):
        raise StoreError("the store's address has more than one `@`, so its password has no certain end", hint=_ENCODE)
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"{backend} is not a store", hint="use sqlite:///FILE or postgresql://HOST/NAME")
    if not url.database or url.database == ":memory:":
        raise StoreError("a store in memory would be gone with the process", hint="name a file: sqlite:///FILE")
    return url.set(drivername="sqlite", database=str(Path(url.database).absolute()))


def sqlite_file(text: str, folder: Path) -> Path | None:
    """Return the file of a store's address, as a command in that folder finds it; None if it names no SQLite file."""
    url = _parsed(text)
    return Path(folder, url.database) if url and url.get_backend_name() == "sqlite" and url.database else None


def without_password(url: URL) -> str:
    """Return the address without any secret: only options that are known to hold none are kept."""
    secret = [name for name in url.query if name not in _HARMLESS_OPTIONS]
    plain = url.set(drivername=url.get_backend_name())  # as it is typed: which driver it is, nobody needs to know
    return plain._replace(password=None).difference_update_query(secret).render_as_string(hide_password=False)


def shown_address(text: str) -> str:
    """Return a store's address as it was given, for people, without the secrets that `without_password` leaves out."""
    url = _parsed(text)
    if url is None or _hides_password(url, text):
        return "an address that cannot be read"
    return without_password(url)


def _parsed(text: str) -> URL | None:
    """Return an address in its parts, None if it is none. The error of SQLAlchemy could quote a password."""
    try:
        text.encode()  # the names of some files are not
        return make_url(text)
    except (ArgumentError, ValueError):
        return None


def _hides_password(url: URL, text: str) -> bool:
    """Return whether a part behind the password may be the rest of it, as of `user:p@ss/word@host`."""
    plain = text.partition("://")[2].partition("?" if url.password is None else "\n")[0]
    user = re.split("[:/]", plain, maxsplit=1)[0]
    return plain.count("@") > user.count("@") + (url.password is not None) and url.get_backend_name() != "sqlite"


def make_engine(url: URL, read_only: ReadOnlyFile | None = None) -> Engine:
    """Make the engine of a parsed address, or of a SQLite file that may only be read; connect to nothing yet."""
    common: dict[str, Any] = {"hide_parameters": True, "json_serializer": to_json, "pool_size": 1, "max_overflow": 4}
    if read_only is not None:
        engine = create_engine(url, creator=read_only.connect, poolclass=NullPool, hide_parameters=True)
        event.listen(engine, "begin", _begin)
        return engine
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S}, **common)
        _listen_sqlite(engine, "WAL" if on_local_disk(Path(str(url.database))) else "DELETE")
        return engine
    engine = create_engine(url, connect_args=_POSTGRES, pool_pre_ping=True, use_native_hstore=False, **common)
    event.listen(engine, "begin", _limit_waits)
    event.listen(engine, "connect", _require_utf8)
    return engine


@contextmanager
def one_writer(url: URL, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock beside a SQLite file that every writer holds; the kernel releases it when the process dies.

    SQLite 3.7.0 to 3.51.2 can corrupt a database when one connection writes while another, right after its commit,
    moves the log back into the file. BEGIN IMMEDIATE does not cover that moment; a lock held until the commit has
    returned does. Raises StoreBusy: another writer held it for all that time.
    """
    path = Path(f"{Path(str(url.database)).resolve()}-writer")  # one lock for a file and all links to it
    fd = open_private(path, os.O_RDWR | os.O_CREAT, closed=True)
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise StoreBusy(f"another process held {path.name} for {timeout_s:g} s") from None
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)


def _require_utf8(connection: Any, _record: object) -> None:
    encoding = connection.info.parameter_status("server_encoding")
    if encoding not in ("UTF8", None):
        message = f"the PostgreSQL database {connection.info.dbname} has the encoding {encoding}; a store needs UTF8"
        raise StoreError(message, hint=_MAKE_UTF8)


def _limit_waits(connection: Connection) -> None:
    """In each transaction: a pooler refuses settings of a connection."""
    lock_ms = BUSY_TIMEOUT_S * 1000
    limits = {"lock_timeout": lock_ms, "idle_in_transaction_session_timeout": 2 * lock_ms}
    connection.exec_driver_sql("; ".join(f"SET LOCAL {name} = {value_ms}" for name, value_ms in limits.items()))


def _listen_sqlite(engine: Engine, journal: str) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver starts no transaction of its own
        connection.execute("PRAGMA foreign_keys = ON")
        if not contents(connection.execute) >= TABLES:  # new, or another program's: it stays as it is
            return
        if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != journal:
            with one_writer(engine.url):
                connection.execute(f"PRAGMA journal_mode = {journal}")
        _give_logs(connection, Path(str(engine.url.database)))

    event.listen(engine, "begin", _begin)


def contents(execute: Callable[[str], Iterable[Any]]) -> set[str]:
    """Return the names of tables, views and indexes of a SQLite file."""
    return {name for (name,) in execute("SELECT name FROM sqlite_master")}


def _give_logs(connection: sqlite3.Connection, path: Path) -> None:
    """Give SQLite's logs to the group that may read the file: it would be that of this process."""
    group = path.stat()
    if group.st_mode & stat.S_IRGRP and group.st_gid != os.getegid():
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # makes them
        for log in (beside(path, end) for end in LOGS):
            with suppress(OSError):  # it is not there, or somebody else's
                os.chown(log, -1, group.st_gid, follow_symlinks=False)


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))
