"""The store: one database, short transactions, errors with a name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    Connection,
    Engine,
    Float,
    Table,
    column,
    event,
    func,
    insert,
    literal_column,
    select,
    table,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.elements import ColumnElement

from dscampaign.files.private_files import make_private, open_private

from .engine import BEGIN, TABLES, contents, make_engine, one_writer, parse_url, without_password
from .errors import (
    TRY_AGAIN,
    SchemaMismatch,
    StaleWrite,
    StoreBusy,
    StoreError,
    StoreIncomplete,
    StoreMissing,
    StoreReadOnly,
    StoreUnreachable,
    first_line,
    is_busy,
    is_wrong_address,
    lacks_grant,
    lacks_table,
    refused_for_now,
    what_next,
)
from .read_only import ReadOnlyFile, read_only, store_doubt
from .schema import HEAD, metadata

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql, sqlite

_VERSION = table("alembic_version", column("version_num"))
_READ_ONLY: Final = "ask its owner to run this, or use a store of your own: `--store`"
_RESTORED: Final = "if it is being restored, try again when that is done; else `campaign db upgrade`"
_GRANT: Final = (
    "status, report and the like work; to run campaigns, log in with the role campaign_owner; after an upgrade, run"
    " roles.sql again (docs/share.md)"
)

_Identity = tuple[int, int]  # device and inode


class Store:
    """A database that this program may read and write. Create it with `Store.open`."""

    def __init__(self, engine: Engine, shown: ReadOnlyFile | None = None) -> None:
        self._engine = engine
        self._read_only: Final = shown
        self.is_sqlite: Final = engine.dialect.name == "sqlite"
        self.url_without_password: Final = without_password(engine.url)
        self.url_without_login: Final = without_password(engine.url._replace(username=None))
        self._file: tuple[Path, _Identity] | None = None  # the SQLite file, and which one it is

    @classmethod
    def open(cls, url: str, *, create: bool = False, check_schema: bool = True) -> Store:
        """Open the database at an address, `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`.

        `create` makes the SQLite file (mode 0600) with its tables; `upgrade` makes PostgreSQL's tables, and opens
        databases that others may not (`check_schema`). Raises StoreMissing; StoreUnreachable: trying again is safe;
        SchemaMismatch: another version made it; StoreError: the address or the login is wrong, or others could replace
        a new file.
        """
        parsed = parse_url(url)
        path = Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None
        try:
            shown = read_only(path) if path else None
        except OSError as error:
            raise StoreUnreachable(f"{without_password(parsed)}: {error}", hint=TRY_AGAIN) from error
        store = cls(make_engine(parsed, shown), shown)
        if path and shown is None:
            store._prepare_file(path, create)
        if check_schema:
            try:
                store.check_schema()
            except StoreUnreachable as error:
                if is_wrong_address(error.message):
                    raise StoreError(error.message, error.hint) from error  # once it was there, it may come back
                raise
        return store

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a transaction that sees one moment of the database and writes nothing."""
        if self.is_sqlite:
            options: dict[str, Any] = {BEGIN: "BEGIN"}
        else:
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._check_file()
        with self._named_errors(), self._connected() as conn:
            conn.execution_options(**options)
            with conn.begin():
                yield conn
        if self._read_only:
            self._read_only.check()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that commits when the block ends and leaves nothing behind when it raises.

        Raises StaleWrite if a row that must be unique was there already; StoreReadOnly; StoreUnreachable if the
        database broke off: nothing was written, or (lost while it committed) everything.
        """
        self.check_writable()
        self._check_file()
        with ExitStack() as stack:
            stack.enter_context(self._named_errors())
            conn = stack.enter_context(self._connected())
            if self.is_sqlite:  # after connecting, which may need the lock itself to set the journal
                with self._named_file_errors():
                    stack.enter_context(one_writer(self._engine.url))
            # Deferred BEGIN fails at once when two readers both turn into writers; IMMEDIATE waits in line.
            conn.execution_options(**{BEGIN: "BEGIN IMMEDIATE"})
            stack.enter_context(conn.begin())
            yield conn

    def now(self, conn: Connection) -> float:
        """Return the database's clock in epoch seconds: the only clock that all hosts share."""
        return database_now(conn)

    @property
    def is_writable(self) -> bool:
        """Whether this user, and nobody else, may write it: commands that it records may be run."""
        return self._read_only is None

    def check_writable(self) -> None:
        """Raise StoreReadOnly if this user may, or should, only read the SQLite file."""
        if self._read_only:
            raise self._read_only.refusal()

    def forbid_writes(self) -> None:
        """Make the database refuse every write through this object; PostgreSQL only reads in `read` anyway."""
        if self.is_sqlite:
            event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only = ON"))
        self.close()

    def check_schema(self) -> None:
        """Raise SchemaMismatch unless the database has the schema that this program needs."""
        with self.read() as conn:
            check_version(conn)

    def close(self) -> None:
        """Close every connection. The store may be used again and then connects anew."""
        self._engine.dispose()

    def _prepare_file(self, path: Path, create: bool) -> None:
        if not create:
            if not path.exists():
                raise StoreMissing(f"there is no store at {path}", hint="`campaign submit SPEC` creates it")
            self._file = path, _identity(path)
            return
        make_private(path.parent)
        if doubt := store_doubt(path):
            raise StoreError(f"no store is made at {path}: {doubt}", hint=f"{doubt.hint}, or name one with --store")
        _create_file(path)
        self._file = path, _identity(path)
        with self.read() as conn:
            new = not contents(conn.exec_driver_sql)  # never used, or its maker died before the one transaction below
        if new:
            with self.write() as conn:
                if not contents(conn.exec_driver_sql):  # still: another process may have been faster
                    create_tables(conn)
            self.close()  # the next connection sets the journal

    def _check_file(self) -> None:
        """Make sure that the file is still the opened file: SQLite would go on in a deleted file."""
        if self._file is None:
            return
        path, opened = self._file
        with self._named_file_errors():
            identity = _identity(path) if path.exists() else None
        if identity == opened:
            return
        if identity is None or identity[1] != opened[1]:
            raise StoreMissing(f"{path} was deleted or replaced while it was in use", hint="put the file back")
        self._engine.dispose()  # mounted anew, as another device: what is open leads to the mount that was
        self._file = path, identity

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._named_file_errors():
            conn = self._engine.connect()
        with conn:
            yield conn

    @contextmanager
    def _named_file_errors(self) -> Iterator[None]:
        """Convert errors of the store with SQLite's files; an OSError of a caller's stays as it is."""
        try:
            yield
        except PermissionError as error:
            raise StoreError(f"{self.url_without_password}: {error.strerror}", hint=_READ_ONLY) from error
        except OSError as error:
            raise StoreUnreachable(f"{self.url_without_password}: {error}", hint=what_next(str(error))) from error

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        driver = self._engine.dialect.loaded_dbapi
        try:
            yield
        except DBAPIError as error:
            raise self._named(error.orig, broken=error.connection_invalidated) from error
        except driver.Error as error:  # COPY talks to the driver itself
            raise self._named(error) from error

    def _named(self, error: BaseException | None, *, broken: bool = False) -> StoreError:
        driver = self._engine.dialect.loaded_dbapi
        if isinstance(error, driver.IntegrityError):
            return StaleWrite(first_line(error))
        message = f"{self.url_without_password}: {first_line(error)}"
        if self.is_sqlite and "readonly database" in message:
            message = f"{self.url_without_password}: you may read this store, not write to it"
            return StoreReadOnly(message, hint=_READ_ONLY)
        if lacks_table(error):
            return StoreIncomplete(message, hint=_RESTORED)
        if not (broken or refused_for_now(error, driver)):
            return StoreReadOnly(message, hint=_GRANT) if lacks_grant(error) else StoreError(message)
        if "locked" in message if self.is_sqlite else is_busy(error):
            return StoreBusy(message, hint=TRY_AGAIN)
        self._engine.dispose()  # a server that is back, or another in its place, is met anew and with its own settings
        return StoreUnreachable(message, hint=what_next(message))


def refusal(conn: Connection, write: Callable[[], object]) -> BaseException | None:
    """Write a part of a transaction that may fail alone; return the store's objection, None once it is written.

    Raises any error that is not the part's fault: the database broke off, a grant is missing, the lease is lost.
    """
    driver = conn.dialect.loaded_dbapi
    try:
        with conn.begin_nested():
            write()
    except (StoreError, OSError):
        raise
    except DBAPIError as error:
        if error.connection_invalidated or refused_for_now(error.orig, driver) or lacks_grant(error.orig):
            raise
        return error.orig
    except Exception as error:
        if refused_for_now(error, driver) or lacks_grant(error):  # COPY talks to the driver itself
            raise
        return error
    return None


def database_now(conn: Connection) -> float:
    """Return the database's clock, epoch seconds: one time for many rows."""
    return float(conn.execute(select(now_s(conn))).scalar_one())


def now_s(conn: Connection) -> ColumnElement[float]:
    """Return the database's clock as an expression, epoch seconds."""
    if conn.dialect.name == "sqlite":
        return literal_column("(julianday('now') - 2440587.5) * 86400.0", Float)
    # Not now(): that is when the transaction began, which may be long before it got its lock.
    return literal_column("CAST(extract(epoch FROM clock_timestamp()) AS double precision)", Float)


def insert_into(conn: Connection, target: Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT of the connection's dialect, which has a clause for conflicts."""
    statement: sqlite.Insert | postgresql.Insert = dialect_of(conn.dialect.name).insert(target)
    return statement


def dialect_of(database: str) -> ModuleType:
    """Return SQLAlchemy's dialect; that of the other database would cost a tenth of the start of `campaign status`."""
    if database == "sqlite":
        from sqlalchemy.dialects import sqlite

        return sqlite
    from sqlalchemy.dialects import postgresql

    return postgresql


def check_version(conn: Connection) -> None:
    """As `Store.check_schema`, within a transaction."""
    if (version := read_version(conn)) != HEAD:
        raise SchemaMismatch(version, HEAD)


def read_version(conn: Connection) -> str | None:
    """Return the schema revision of a database, None if it has no schema."""
    if conn.dialect.name == "sqlite":
        if (names := contents(conn.exec_driver_sql)) and not names >= TABLES:
            raise StoreError("another program made this database", hint="name another file: `--store sqlite:///FILE`")
        has_version = _VERSION.name in names
    else:  # SQLAlchemy's own question costs more, and a thousand agents ask it every five seconds
        has_version = conn.execute(select(func.to_regclass(_VERSION.name))).scalar() is not None
    if not has_version:
        return None
    return conn.execute(select(_VERSION.c.version_num)).scalar()  # of several, which only others have, any


def create_tables(conn: Connection) -> None:
    """Make all tables of the newest schema in a database without any."""
    metadata.create_all(conn, checkfirst=False)
    conn.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    conn.execute(insert(_VERSION).values(version_num=HEAD))


def _create_file(path: Path) -> None:
    # An existing one is never opened: closing it would drop all locks that this process holds on it through SQLite, by
    # a rule of POSIX, and another process would take the log that we write for left over, and delete it.
    with suppress(FileExistsError):
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, closed=True))


def _identity(path: Path) -> _Identity:
    info = path.stat()
    return info.st_dev, info.st_ino
