"""Every test of the store runs on both databases."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.postgres import PostgresServer
from dscampaign.tests.support.worlds import World, make_world

BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=BOTH)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables; for SQLite, of a file that is not there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/campaign.db"
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture(scope="session")
def made_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with this version's tables."""
    path = tmp_path_factory.mktemp("made") / "campaign.db"
    Store.open(f"sqlite:///{path}", create=True).close()
    return path


@pytest.fixture(scope="session")
def made_postgres(postgres: PostgresServer) -> str:
    """The address of a database with this version's tables."""
    url = postgres.new_database()
    store = Store.open(url, check_schema=False)
    upgrade(store)
    store.close()
    return url


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database with this version's tables, all empty: to make them takes longer than most tests."""
    if request.param == "postgres":
        address: str = request.getfixturevalue("made_postgres")
        yield address
        request.getfixturevalue("postgres").empty(address)
    else:
        path = request.getfixturevalue("tmp_path") / "store" / "campaign.db"
        path.parent.mkdir(mode=0o700)
        shutil.copy(request.getfixturevalue("made_sqlite"), path)
        yield f"sqlite:///{path}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store.open(url)
    yield store
    store.close()


@pytest.fixture
def world(store: Store, tmp_path: Path) -> World:
    """A campaign with one run, its first attempt and that attempt's spool."""
    return make_world(store, tmp_path)
