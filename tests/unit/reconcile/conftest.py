"""A world for each test."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dscampaign.tests.support.world_on_disk import World, make_world


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where there is such a place: these tests write much and are not about the disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def world(folder: Path) -> Iterator[World]:
    """An empty store and an idle cluster."""
    made = make_world(folder)
    yield made
    made.store.close()
