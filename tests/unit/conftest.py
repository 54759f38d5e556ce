"""What holds for all pure tests."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own commands, where they are installed, look for a configuration for a minute before they give up."""
    monkeypatch.setenv("SLURM_CONF", os.devnull)
