"""Bringing a database's schema up to date. The only place that imports Alembic."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config

from .schema import HEAD
from .store import Store, create_tables, read_version

_ADVISORY_LOCK: Final = 0x64736361  # any fixed number: "dsca"


def upgrade(store: Store) -> tuple[str | None, str]:
    """Makes a database's tables, or applies the migrations that they lack, all in one transaction.

    Args:
        store: Opened with `check_schema=False`.

    Returns:
        The revision before and after.

    Raises:
        StoreUnreachable: The database broke off; it is as it was before.
    """
    with store.write() as conn:
        if not store.is_sqlite:  # two upgrades at once: the second waits, then finds nothing left to do
            conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        found = read_version(conn)
        if found is None:
            create_tables(conn)
        else:
            config = migrations()
            config.attributes["connection"] = conn
            command.upgrade(config, "head")
    return found, HEAD


def migrations() -> Config:
    """Alembic's configuration, without a file: the migrations are part of the package."""
    config = Config()
    config.set_main_option("script_location", str(files(__package__).joinpath("migrations")))
    return config
