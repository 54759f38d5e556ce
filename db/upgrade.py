"""Upgrades a database's schema. The only place that imports Alembic."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from .errors import StoreError
from .schema import HEAD
from .store import Store, create_tables, read_version

_ADVISORY_LOCK: Final = 0x64736361  # any fixed number: "dsca"


def upgrade(store: Store) -> tuple[str | None, str]:
    """Make tables, or apply missing migrations, in a single transaction; return the revision before and after."""
    if store.is_sqlite:
        with store.read() as conn:
            read_version(conn)  # beside another program's file, not even a lock is made
    with store.write() as conn:
        if not store.is_sqlite:  # two upgrades at once: the second waits, then finds nothing left to do
            conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        version = read_version(conn)
        if version is None:
            create_tables(conn)
        else:
            config = migrations()
            config.attributes["connection"] = conn
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                message = f"this version cannot upgrade a store of schema {version}"
                raise StoreError(message, "use the version that made it, or a new store: `--store`") from error
    return version, HEAD


def migrations() -> Config:
    """Return Alembic's configuration, without a file: the migrations are part of the package."""
    config = Config()
    config.set_main_option("script_location", str(files(__package__).joinpath("migrations")))
    return config
