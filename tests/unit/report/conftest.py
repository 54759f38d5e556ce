"""Planted campaigns: in a store, or read back from one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dscampaign.db.store import Store
from dscampaign.orchestrator.report.measure.load import read_runs
from dscampaign.orchestrator.report.measure.run import MeasuredRun
from dscampaign.tests.support.planted import Planted, plant

PlantStore = Callable[..., str]
Plant = Callable[..., list[MeasuredRun]]


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


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[Plant]:
    """Plants conditions and reads them back as facts."""
    store = Store.open(f"sqlite:///{tmp_path}/campaign.db", create=True)

    def facts(*conditions: Planted) -> list[MeasuredRun]:
        return read_runs(store, plant(store, tmp_path, conditions))

    yield facts
    store.close()
