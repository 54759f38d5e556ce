"""A test of the command line begins in a folder of its own, without configuration; `world` is a campaign there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.tests.support.cli_world import World, make_world


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CAMPAIGN_DIR", "CAMPAIGN_STORE", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Four runs of the campaign `sweep`: done, small, bad and new."""
    made = make_world(tmp_path)
    yield made
    made.store.close()
