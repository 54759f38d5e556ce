"""A SQLite store that this user may only read: reading works and is never a mixture, writing names the owner."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from dscampaign.db import queries
from dscampaign.db.errors import StoreBusy, StoreError, StoreReadOnly
from dscampaign.db.store import Store


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can reach, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="shared-"))
    path.chmod(0o755)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def as_reader(folder: Path) -> Iterator[None]:
    """What follows may read the folder, not write it: as another user where this one is root."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)
        for path in folder.iterdir():
            path.chmod(0o644)


def names(store: Store) -> list[str]:
    with store.read() as conn:
        return [row.name for row in queries.list_campaigns(conn)]


def add(store: Store, name: str) -> None:
    with store.write() as conn:
        queries.insert_campaign(conn, name=name, spec="", spec_hash="", dir="/d", executor="local")


def test_a_store_that_was_closed_is_read(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    with closing(Store.open(url, create=True)) as own:
        add(own, "sweep")
    assert not (folder / "campaign.db-wal").exists()
    with as_reader(folder), closing(Store.open(url)) as seen:
        assert names(seen) == ["sweep"]


def test_a_store_whose_owner_is_at_work_is_read_with_its_log(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    with closing(Store.open(url, create=True)) as own:
        add(own, "sweep")
        names(own)  # keeps a connection, and so the log
        if not (folder / "campaign.db-wal").exists():
            pytest.skip("LEFT OUT: this folder's file system has no write-ahead log")
        with as_reader(folder), closing(Store.open(url)) as seen:
            assert names(seen) == ["sweep"]


def test_writing_is_refused_with_the_owner(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    Store.open(url, create=True).close()
    with as_reader(folder), closing(Store.open(url)) as seen:
        with pytest.raises(StoreReadOnly, match=r"belongs to .*, and you may only read it") as caught:
            add(seen, "mine")
        assert "--store" in caught.value.hint
        assert not caught.value.retryable


def test_a_writer_that_comes_meanwhile_is_noticed(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    Store.open(url, create=True).close()
    with as_reader(folder):
        seen = Store.open(url)
    with pytest.raises(StoreBusy, match="changed while it was read"), seen.read(), closing(Store.open(url)) as own:
        add(own, "sweep")


def test_a_log_that_only_the_owner_can_replay_is_named(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    Store.open(url, create=True).close()
    (folder / "campaign.db-wal").write_bytes(b"x" * 100)
    with as_reader(folder), pytest.raises(StoreError, match="cannot be read") as caught:
        Store.open(url)
    assert "run `campaign status` once" in caught.value.hint


# -- a store that others may have written ------------------------------------------------------------------------------


def planted_trigger(folder: Path) -> None:
    """What somebody who can write the file once makes it do with every run that is added."""
    with closing(sqlite3.connect(folder / "campaign.db")) as conn:
        conn.execute("CREATE TRIGGER t AFTER INSERT ON campaign BEGIN UPDATE campaign SET dir = '/theirs'; END")
        conn.commit()


def of_another(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("LEFT OUT: only root can give a file to somebody else")
    os.chown(folder / "campaign.db", 12345, 12345)


def open_to_all(folder: Path) -> None:
    (folder / "campaign.db").chmod(0o666)


def in_a_public_folder(folder: Path) -> None:
    folder.chmod(0o1777)


def in_a_folder_of_another(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("LEFT OUT: only root can give a folder to somebody else")
    os.chown(folder, 12345, 12345)


@pytest.mark.parametrize("change", [of_another, open_to_all, in_a_public_folder, in_a_folder_of_another])
def test_a_store_that_others_may_write_is_shown_and_never_run(folder: Path, change: Callable[[Path], None]) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    with closing(Store.open(url, create=True)) as own:
        add(own, "sweep")
    planted_trigger(folder)
    change(folder)
    with closing(Store.open(url)) as seen:
        assert names(seen) == ["sweep"]
        with pytest.raises(StoreReadOnly, match=f"nothing is run from {folder}/campaign.db: ") as caught:
            seen.check_writable()
        with pytest.raises(StoreReadOnly):
            add(seen, "mine")
        assert "--store" in caught.value.hint
    with pytest.raises(StoreReadOnly), closing(Store.open(url, create=True)) as again:
        add(again, "mine")


def test_no_store_is_made_where_others_could_replace_it(folder: Path) -> None:
    folder.chmod(0o1777)
    with pytest.raises(StoreError, match=f"no store is made at {folder}/campaign.db: others can write") as caught:
        Store.open(f"sqlite:///{folder}/campaign.db", create=True)
    assert f"chmod go-w {folder}" in caught.value.hint
    assert not any(folder.iterdir())


def test_a_link_to_a_store_is_judged_by_where_it_leads(folder: Path) -> None:
    (folder / "public").mkdir()
    with closing(Store.open(f"sqlite:///{folder}/public/campaign.db", create=True)):
        (folder / "campaign.db").symlink_to("public/campaign.db")
    with closing(Store.open(f"sqlite:///{folder}/campaign.db")) as own:
        own.check_writable()
    (folder / "public").chmod(0o1777)
    with closing(Store.open(f"sqlite:///{folder}/campaign.db")) as seen, pytest.raises(StoreReadOnly):
        seen.check_writable()


def test_a_shown_store_runs_no_function_of_its_schema(folder: Path) -> None:
    url = f"sqlite:///{folder}/campaign.db"
    Store.open(url, create=True).close()
    open_to_all(folder)
    with closing(Store.open(url)) as seen, seen.read() as conn:
        for name, value in {"trusted_schema": 0, "query_only": 1, "cell_size_check": 1}.items():
            assert conn.exec_driver_sql(f"PRAGMA {name}").scalar_one() == value
