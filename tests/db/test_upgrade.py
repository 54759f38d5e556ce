"""Migrations and tables say the same, and a database of another version is left alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from dscampaign.db import queries, schema
from dscampaign.db.errors import SchemaMismatch
from dscampaign.db.store import Store
from dscampaign.db.upgrade import current_version, head_version, migrations, upgrade

from .worlds import new_campaign


def _unmade(url: str) -> Store:
    """A store without tables; for SQLite as an empty file, which is what a killed maker leaves."""
    if url.startswith("sqlite"):
        Store.open(url, create=True).close()
        path = url.removeprefix("sqlite:///")
        for end in ("", "-wal", "-shm"):
            Path(path + end).write_bytes(b"")
    return Store.open(url, check_schema=False)


def test_the_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(migrations()).get_current_head() == head_version()


def test_migrations_make_the_tables_that_the_program_knows(empty_url: str) -> None:
    store = _unmade(empty_url)
    assert upgrade(store) == (None, head_version())
    with store.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn), schema.metadata) == []
        assert inspect(conn).get_view_names() == ["run_metric"]
        assert queries.metrics(conn, 1) == []
    Store.open(empty_url).close()
    assert upgrade(store) == (head_version(), head_version())


def test_a_store_of_before_gets_the_tables_of_telemetry_and_keeps_what_it_has(empty_url: str) -> None:
    store = _unmade(empty_url)
    with store.write() as conn:
        config = migrations()
        config.attributes["connection"] = conn
        command.upgrade(config, "0002")
    with store.write() as conn:
        campaign_id = new_campaign(conn)
        assert not {"gpu", "node_spool"} & set(inspect(conn).get_table_names())
    assert upgrade(store) == ("0002", head_version())
    with store.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn), schema.metadata) == []
        assert [row.id for row in queries.list_campaigns(conn)] == [campaign_id]
        assert queries.attempt_gpus(conn, 1) is None


def test_a_database_without_tables_is_not_used(empty_url: str) -> None:
    _unmade(empty_url)
    with pytest.raises(SchemaMismatch, match="absent") as caught:
        Store.open(empty_url)
    assert (caught.value.found, caught.value.wanted, caught.value.hint) == (
        None,
        head_version(),
        "campaign db upgrade",
    )


def test_a_database_of_another_version_is_not_used(url: str) -> None:
    store = Store.open(url)
    with store.write() as conn:
        conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaMismatch, match="9999") as caught:
        Store.open(url)
    assert caught.value.found == "9999"
    with pytest.raises(SchemaMismatch):
        Store.open(url, create=True)
    assert current_version(store) == "9999"


def test_two_upgrades_at_once_are_one(empty_url: str) -> None:
    stores = [_unmade(empty_url) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(upgrade, stores[1])
        upgrade(stores[0])
        second.result()
    Store.open(empty_url).close()
