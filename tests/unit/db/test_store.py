"""Opening a store, its transactions, and what its errors say."""

import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url

from dscampaign.db import queries
from dscampaign.db.engine import one_writer, parse_url, shown_address, without_password
from dscampaign.db.errors import StaleWrite, StoreBusy, StoreError, StoreMissing, StoreUnreachable
from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.worlds import World, new_campaign


def test_a_new_file_is_the_owners_alone(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/deep/campaign.db", create=True)
    with store.write() as conn:
        new_campaign(conn)
    files = list((tmp_path / "deep").iterdir())
    assert len(files) >= 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_opening_a_store_twice_keeps_its_locks(tmp_path: Path) -> None:
    """Else the next process to come takes the log that is being written for left over, and deletes it."""
    url = f"sqlite:///{tmp_path}/campaign.db"
    first = Store.open(url, create=True)
    second = Store.open(url, create=True)
    with second.write() as conn:
        new_campaign(conn)
    logs = [tmp_path / "campaign.db-wal", tmp_path / "campaign.db-shm"]
    before = [path.stat().st_ino for path in logs]
    visit = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); print(*db.execute('select name from campaign'))"
    command = [sys.executable, "-c", visit, str(tmp_path / "campaign.db")]
    assert "sweep" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [path.stat().st_ino for path in logs] == before
    first.close()


@pytest.mark.parametrize("again", [False, True])
def test_a_file_that_is_deleted_while_in_use_is_missed_at_once(tmp_path: Path, again: bool) -> None:
    url = f"sqlite:///{tmp_path}/campaign.db"
    store = Store.open(url, create=True)
    for path in tmp_path.iterdir():
        path.unlink()
    if again:
        Store.open(url, create=True)
    with pytest.raises(StoreMissing, match="deleted or replaced while it was in use"), store.write() as conn:
        new_campaign(conn)


@pytest.mark.parametrize("made", ["TABLE run (id)", "TABLE campaign (id)", "VIEW v AS SELECT 1"])
def test_the_database_of_another_program_stays_as_it_is(tmp_path: Path, made: str) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute(f"CREATE {made}")
    before = path.read_bytes()
    for options in ({}, {"create": True}, {"check_schema": False}):
        with pytest.raises(StoreError, match="another program made this database"):
            upgrade(Store.open(f"sqlite:///{path}", **options))
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (before, [path])


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "campaign.db").write_text("hello " * 1000)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)


def test_the_password_stays_out_of_sight() -> None:
    url = parse_url("postgresql://me:secret@127.0.0.1:1/db?password=secret&sslmode=disable")
    assert without_password(url) == "postgresql://me@127.0.0.1:1/db?sslmode=disable"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me@db/x?password=secret", "postgresql://me@db/x"),
        ("postgresql://me:sec/ret@db/x", "postgresql://me@db/x"),
        ("postgresql://me:secret@db/x?sslpassword=secret&sslmode=require", "postgresql://me@db/x?sslmode=require"),
        ("postgresql://me:secret@db/x?unheard_of=secret", "postgresql://me@db/x"),
        ("postgresql://me:secret@[::1]:99/x", "postgresql://me@[::1]:99/x"),
        ("sqlite:////scratch/my runs/campaign.db", "sqlite:////scratch/my runs/campaign.db"),
        ("me:secret@db", "an address that cannot be read"),
        ("postgresql://me:p@sec/ret#1@db/x", "an address that cannot be read"),
        ("postgresql://me:p@sec?ret/1@db/x", "an address that cannot be read"),
        ("postgresql://me:p@ss:sec/ret@db/x", "an address that cannot be read"),
        ("postgresql://m/e:secret@db/x", "an address that cannot be read"),
        ("postgresql://me@corp:secret@db/x?user=a%40b", "postgresql://me%40corp@db/x?user=a%40b"),
        ("postgresql:///x?user=me@corp", "postgresql:///x?user=me%40corp"),
        ("sqlite:////home/me@corp/campaign.db", "sqlite:////home/me%40corp/campaign.db"),
        ("postgresql://me:secret@db/x%40y", "postgresql://me@db/x%40y"),
    ],
)
def test_an_address_is_shown_without_any_secret(address: str, shown: str) -> None:
    assert shown_address(address) == shown
    with pytest.raises(StoreUnreachable) as caught:
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert caught.value.retryable


@pytest.mark.parametrize(
    "password", ["p@sec/ret#1%", "sec@ret", "p@ss/sec?ret", "p@ss:sec:ret", "@secret", "a@1/secret"]
)
def test_no_part_of_a_password_is_printed(password: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(f"postgresql://me:{password}@127.0.0.1:1/db")
    said = f"{caught.value} {caught.value.hint} {caught.value.__cause__} {caught.value.__context__}"
    assert not isinstance(caught.value, StoreUnreachable)
    assert ("%40" in said, "sec" in said, "ret" in said) == (True, False, False)


@pytest.mark.postgres
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgres: PostgresServer, encoding: str) -> None:
    import psycopg

    name = f"is_{encoding.lower()}"
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0")
    for check_schema in (True, False):
        with pytest.raises(StoreError, match=f"{name} has the encoding {encoding}") as caught:
            upgrade(Store.open(postgres.url(name), check_schema=check_schema))
        assert "--encoding=UTF8" in caught.value.hint
        assert not isinstance(caught.value, StoreUnreachable)


def test_a_transaction_that_raises_leaves_nothing(store: Store) -> None:
    with pytest.raises(KeyError), store.write() as conn:
        raise KeyError(new_campaign(conn))
    with store.read() as conn:
        assert queries.list_campaigns(conn) == []


def test_a_reader_sees_one_moment(store: Store) -> None:
    with store.read() as reader:
        assert queries.list_campaigns(reader) == []
        with store.write() as writer:
            new_campaign(writer)
        assert queries.list_campaigns(reader) == []


def test_writers_wait_in_line(world: World) -> None:
    """Each reads, then writes what follows from it: with a deferred BEGIN most of these would fail."""

    def count_up(_: int) -> None:
        store = Store.open(world.store._engine.url.render_as_string(hide_password=False))
        for _step in range(25):
            with store.write() as conn:
                assert queries.update_attempt(conn, 1, gpu_seconds=_lock_and_read(store, conn) + 1)
        store.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(4)))
    with world.store.read() as conn:
        assert queries.attempts(conn, 1)[0].gpu_seconds == 100


def _lock_and_read(store: Store, conn: Connection) -> float:
    lock = "" if store.is_sqlite else " FOR UPDATE"
    return float(conn.exec_driver_sql(f"SELECT gpu_seconds FROM attempt WHERE id = 1{lock}").scalar_one())


def test_a_lock_held_too_long_is_busy(tmp_path: Path) -> None:
    url = make_url(f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "link.db").symlink_to("store.db")
    for same in (url, make_url(f"sqlite:///{tmp_path}/link.db")):
        with one_writer(url, 0), pytest.raises(StoreBusy, match=r"store\.db-writer"), one_writer(same, 0):
            pass
    with one_writer(url, 0):
        pass


@pytest.mark.postgres
def test_a_postgres_that_went_away_comes_back(crashing_postgres: PostgresServer) -> None:
    store = Store.open(crashing_postgres.new_database(), check_schema=False)
    crashing_postgres.stop("immediate")
    with pytest.raises(StoreUnreachable, match="refused"), store.read() as conn:
        store.now(conn)
    crashing_postgres.start()
    with store.read() as conn:
        assert abs(store.now(conn) - time.time()) < 60


def test_a_connection_that_breaks_in_mid_transaction_is_unreachable(postgres: PostgresServer) -> None:
    store = Store.open(postgres.new_database(), check_schema=False)
    with pytest.raises(StoreUnreachable):
        _die_in_transaction(store)
    with store.read() as conn:
        store.now(conn)


def _die_in_transaction(store: Store) -> None:
    with store.write() as conn:
        conn.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("directly", [False, True], ids=["sqlalchemy", "driver"])
@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        *(
            (code, StoreUnreachable)
            for code in ("08006", "25006", "25P03", "53100", "53300", "57P01", "57P03", "58030")
        ),
        *((code, StoreBusy) for code in ("40001", "40P01", "55P03")),
        ("23505", StaleWrite),
        *((code, StoreError) for code in ("22003", "42501", "XX000")),
    ],
)
def test_temporary_refusals_of_a_server_are_unreachable(
    postgres: PostgresServer, sqlstate: str, kind: type[StoreError], directly: bool
) -> None:
    store = Store.open(postgres.url(), check_schema=False)
    refusal = f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$"

    def refuse(conn: Connection) -> None:
        if directly:
            conn.connection.cursor().execute(refusal)  # as COPY does
        else:
            conn.exec_driver_sql(refusal)

    with pytest.raises(StoreError, match="no") as refused, store.write() as conn:
        refuse(conn)
    assert type(refused.value) is kind
    with store.read() as conn:
        store.now(conn)


def test_a_file_that_comes_back_is_used_again(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/dir/campaign.db", create=True)
    for aside in ("dir", "dir/campaign.db"):
        (tmp_path / aside).rename(tmp_path / "aside")
        with pytest.raises(StoreMissing, match="deleted or replaced"), store.write() as conn:
            new_campaign(conn)
        (tmp_path / "aside").rename(tmp_path / aside)
        with store.write() as conn:
            new_campaign(conn, aside)


def test_the_log_is_written_ahead_only_on_a_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "campaign.db"
    for local, journal in ((True, "wal"), (False, "delete"), (True, "wal")):
        monkeypatch.setattr("dscampaign.db.engine.on_local_disk", lambda _path, local=local: local)
        Store.open(f"sqlite:///{path}", create=True).close()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == (journal,)
        connection.close()
