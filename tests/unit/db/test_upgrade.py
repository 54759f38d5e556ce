"""Migrations lead from the first schema to the tables that the program knows; another version's are left alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from dscampaign.db import metrics, schema
from dscampaign.db.errors import SchemaMismatch, StoreError
from dscampaign.db.schema import HEAD
from dscampaign.db.store import Store, read_version
from dscampaign.db.upgrade import migrations, upgrade
from dscampaign.tests.support.worlds import new_campaign


def _unmade(url: str) -> Store:
    """A store without tables; for SQLite as an empty file, which is what a killed maker leaves."""
    if url.startswith("sqlite"):
        Store.open(url, create=True).close()
        path = url.removeprefix("sqlite:///")
        for end in ("", "-wal", "-shm"):
            Path(path + end).write_bytes(b"")
    return Store.open(url, check_schema=False)


@pytest.fixture
def url(empty_url: str) -> str:
    """The address of a database with this version's tables, which no other test gets."""
    store = _unmade(empty_url)
    upgrade(store)
    store.close()
    return empty_url


def test_an_upgrade_makes_the_tables_that_the_program_knows(empty_url: str) -> None:
    store = _unmade(empty_url)
    assert upgrade(store) == (None, HEAD)
    _require_tables(store)
    Store.open(empty_url).close()
    assert upgrade(store) == (HEAD, HEAD)


def _require_tables(store: Store) -> None:
    with store.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn), schema.metadata) == []
        assert inspect(conn).get_view_names() == ["run_metric"]
        assert list(metrics.metrics(conn, 1)) == []


def test_the_oldest_schema_that_is_upgraded_becomes_the_newest(url: str) -> None:
    store = Store.open(url)
    with store.write() as conn:
        added = (("run", "cause"), ("attempt", "task"), ("attempt", "position"), ("attempt", "job_token"))
        for table, column in added:
            conn.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN {column}")
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '0004'")
    assert upgrade(store) == ("0004", HEAD)
    _require_tables(store)


NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column("campaign", sa.Column("owner", sa.String(16), nullable=False, server_default="nobody"))
    {then}
"""
"""A schema of the future, for as long as there is only one."""


def _release(folder: Path, patch: pytest.MonkeyPatch, then: str = "pass") -> None:
    """Makes the program one with a second revision."""
    (folder / "next.py").write_text(NEXT.format(head=HEAD, then=then))
    ours = migrations()
    folders = [str(Path(str(ours.get_main_option("script_location")), "versions")), str(folder)]
    ours.set_main_option("path_separator", "newline")
    ours.set_main_option("version_locations", "\n".join(folders))
    patch.setattr("dscampaign.db.upgrade.migrations", lambda: ours)
    patch.setattr("dscampaign.db.upgrade.HEAD", "next")


def test_an_upgrade_keeps_the_rows(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = Store.open(url), HEAD
    with store.write() as conn:
        new_campaign(conn)
    _release(tmp_path, monkeypatch)
    assert upgrade(store) == (first, "next")
    with store.read() as conn:
        assert conn.exec_driver_sql("SELECT name, owner FROM campaign").all() == [("sweep", "nobody")]
        assert inspect(conn).get_view_names() == ["run_metric"]
    with pytest.raises(SchemaMismatch, match="next"):  # the program of before leaves it alone
        Store.open(url)
    assert upgrade(store) == ("next", "next")


def test_an_upgrade_that_breaks_off_changes_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = Store.open(url), HEAD
    _release(tmp_path, monkeypatch, then="op.drop_table('of nobody')")
    with pytest.raises(StoreError):
        upgrade(store)
    with store.read() as conn:
        assert read_version(conn) == first
        assert "owner" not in {column["name"] for column in inspect(conn).get_columns("campaign")}


def test_a_database_without_tables_is_not_used(empty_url: str) -> None:
    _unmade(empty_url)
    with pytest.raises(SchemaMismatch, match="absent") as caught:
        Store.open(empty_url)
    assert (caught.value.found, caught.value.wanted, caught.value.hint) == (None, HEAD, "`campaign db upgrade`")


def test_a_database_of_another_version_is_not_used(url: str) -> None:
    store = Store.open(url)
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match="9999") as caught:
        Store.open(url)
    assert caught.value.found == "9999"
    with pytest.raises(SchemaMismatch):
        Store.open(url, create=True)
    with pytest.raises(StoreError, match="cannot upgrade a store of schema 9999"):
        upgrade(store)
    with store.read() as conn:
        assert read_version(conn) == "9999"


def test_two_upgrades_at_once_are_one(empty_url: str) -> None:
    stores = [_unmade(empty_url) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(upgrade, stores[1])
        upgrade(stores[0])
        second.result()
    Store.open(empty_url).close()
