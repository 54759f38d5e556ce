"""Bringing a database's schema up to date. The only place that imports Alembic."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config

from .schema import HEAD
from .store import Store

_ADVISORY_LOCK: Final = 0x64736361  # any fixed number: "dsca"


def upgrade(store: Store) -> tuple[str | None, str]:
    """Applies the migrations that a database lacks, all in one transaction.

    Args:
        store: Opened with `check_schema=False`.

    Returns:
        The revision before and after.

    Raises:
        StoreUnreachable: The database broke off; it is as it was before.
    """
    found = current_version(store)
    with store.write() as conn:
        if not store.is_sqlite:  # two upgrades at once: the second waits, then finds nothing left to do
            conn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        config = migrations()
        config.attributes["connection"] = conn
        command.upgrade(config, "head")
    return found, head_version()


def current_version(store: Store) -> str | None:
    """The revision that a database has, None when it has no schema."""
    return store.version()


def head_version() -> str:
    """The revision that this program needs."""
    return HEAD


def migrations() -> Config:
    """Alembic's configuration, without a file: the migrations are part of the package."""
    config = Config()
    config.set_main_option("script_location", str(files(__package__).joinpath("migrations")))
    return config
