"""Migrations lead from the first schema to the tables that the program knows; another version's are left alone."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from dscampaign.db import queries, schema
from dscampaign.db.errors import SchemaMismatch, StoreError
from dscampaign.db.schema import HEAD
from dscampaign.db.states import Cause, CauseCode
from dscampaign.db.store import Store
from dscampaign.db.upgrade import migrations, upgrade
from dscampaign.tests.support.worlds import new_campaign
from dscampaign.tests.unit.db import schema_0001


def _unmade(url: str) -> Store:
    """A store without tables; for SQLite as an empty file, which is what a killed maker leaves."""
    if url.startswith("sqlite"):
        Store.open(url, create=True).close()
        path = url.removeprefix("sqlite:///")
        for end in ("", "-wal", "-shm"):
            Path(path + end).write_bytes(b"")
    return Store.open(url, check_schema=False)


def test_the_head_is_the_newest_migration() -> None:
    assert ScriptDirectory.from_config(migrations()).get_current_head() == HEAD


def _first_release(store: Store) -> None:
    """Makes the tables as the first release made them."""
    with store.write() as conn:
        context = MigrationContext.configure(conn)
        with Operations.context(context):
            schema_0001.create()
        context.stamp(ScriptDirectory.from_config(migrations()), schema_0001.REVISION)


@pytest.mark.parametrize("first", [False, True])
def test_an_upgrade_makes_the_tables_that_the_program_knows(empty_url: str, *, first: bool) -> None:
    store = _unmade(empty_url)
    if first:
        _first_release(store)
    assert upgrade(store) == (schema_0001.REVISION if first else None, HEAD)
    with store.read() as conn:
        assert compare_metadata(MigrationContext.configure(conn), schema.metadata) == []
        assert inspect(conn).get_view_names() == ["run_metric"]
        assert list(queries.metrics(conn, 1)) == []
    Store.open(empty_url).close()
    assert upgrade(store) == (HEAD, HEAD)


MISSING = "set where this campaign was submitted, not where it is reconciled"
REASONS = {
    "two": (
        "held",
        f"HF_HOME, HF_TOKEN were {MISSING}: set them and reconcile",
        Cause(CauseCode.MISSING_VARIABLES, ("HF_HOME", "HF_TOKEN")),
    ),
    "one": (
        "held",
        f"HF_HOME was {MISSING}: set it and reconcile",
        Cause(CauseCode.MISSING_VARIABLES, ("HF_HOME",)),
    ),
    "lost": (
        "held",
        "no such file · the other runs continue; a retry starts this one again",
        Cause(CauseCode.UNREADABLE),
    ),
    "hours": ("held", "limits.gpu_hours = 2 is used up", None),
    "refused": ("failed", "sbatch refused it: Invalid partition", Cause(CauseCode.REFUSED)),
    "crashed": ("failed", "KeyError: 'x'", None),
    "stuck": (
        "queued",
        "will not start: its QOS is not valid (InvalidQOS); change the spec",
        Cause(CauseCode.NEVER_STARTS),
    ),
    "older": ("queued", "InvalidQOS", Cause(CauseCode.NEVER_STARTS)),
    "waits": ("queued", "waiting: other jobs come first (Priority)", None),
}


def test_causes_are_read_once_from_the_reasons_that_earlier_versions_wrote(empty_url: str) -> None:
    store = _unmade(empty_url)
    _first_release(store)
    rest = {"campaign_id": 1, "params": "{}", "config": "{}", "config_hash": "h", "repeat": 0, "desired": "run"}
    rest |= {"generation": 0, "retry_epoch": 0, "updated_s": 1.0}
    with store.write() as conn:
        conn.exec_driver_sql(
            "INSERT INTO campaign (name, spec, spec_hash, dir, executor, desired, provenance, created_s)"
            " VALUES ('c', '', '', '/c', 'local', 'run', '{}', 1.0)"
        )
        for ordinal, (name, (state, reason, _)) in enumerate(REASONS.items()):
            values = {"name": name, "state": state, "reason": reason, "ordinal": ordinal, **rest}
            conn.execute(text(f"INSERT INTO run ({', '.join(values)}) VALUES (:{', :'.join(values)})"), values)
    upgrade(store)
    with store.read() as conn:
        assert {run.name: run.cause for run in queries.runs(conn, 1)} == {name: one[2] for name, one in REASONS.items()}
        assert queries.lacking_variables(conn) == {1}
    with store.write() as conn:
        [first, *_] = queries.runs(conn, 1)
        queries.update_run(conn, first.id, reason="another")
        assert queries.run_by_id(conn, first.id).cause is None


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


def test_an_older_store_is_brought_up_to_date_and_keeps_what_it_has(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert store.version() == first
    with store.read() as conn:
        assert "owner" not in {column["name"] for column in inspect(conn).get_columns("campaign")}


def test_a_database_without_tables_is_not_used(empty_url: str) -> None:
    _unmade(empty_url)
    with pytest.raises(SchemaMismatch, match="absent") as caught:
        Store.open(empty_url)
    assert (caught.value.found, caught.value.wanted, caught.value.hint) == (
        None,
        HEAD,
        "`campaign db upgrade`",
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
    assert store.version() == "9999"


def test_two_upgrades_at_once_are_one(empty_url: str) -> None:
    stores = [_unmade(empty_url) for _ in range(2)]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(upgrade, stores[1])
        upgrade(stores[0])
        second.result()
    Store.open(empty_url).close()
