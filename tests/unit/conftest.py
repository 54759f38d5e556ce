"""What holds for all pure tests."""

import os
import sys

import pytest

from dscampaign.tests.conftest import NOT_PURE


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's own commands, where they are installed, look for a configuration for a minute before they give up."""
    monkeypatch.setenv("SLURM_CONF", os.devnull)


@pytest.fixture(autouse=True)
def _pure(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """They pass in the small environment of `make check`, which has no training stack."""
    if not request.node.get_closest_marker("training"):
        for name in NOT_PURE:
            monkeypatch.setitem(sys.modules, name, None)
