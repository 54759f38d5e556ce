"""Every test of the store runs on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.db.upgrade import upgrade
from dscampaign.tests.support.worlds import World, make_world


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database without tables; for SQLite, of a file that is not there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store/campaign.db"
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture
def url(empty_url: str) -> str:
    """The address of a database with this version's tables."""
    if empty_url.startswith("sqlite"):
        Store.open(empty_url, create=True).close()
    else:
        store = Store.open(empty_url, check_schema=False)
        upgrade(store)
        store.close()
    return empty_url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store.open(url)
    yield store
    store.close()


@pytest.fixture
def world(store: Store, tmp_path: Path) -> World:
    """A campaign with one run, its first attempt and that attempt's spool."""
    return make_world(store, tmp_path)
