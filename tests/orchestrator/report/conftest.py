"""A store that holds a planted campaign."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store

from .planted import Planted, plant

PlantStore = Callable[..., str]


@pytest.fixture
def planted_url(tmp_path: Path) -> Iterator[PlantStore]:
    """Plants conditions as a campaign in one store and returns its address."""
    url = f"sqlite:///{tmp_path}/campaign.db"
    store = Store.open(url, create=True)

    def make(*conditions: Planted, name: str = "sweep") -> str:
        plant(store, tmp_path, conditions, name)
        return url

    yield make
    store.close()
