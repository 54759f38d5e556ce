"""A short soak; `make soak` is the long one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from .soak import Soak

pytestmark = [pytest.mark.nightly, pytest.mark.cluster, pytest.mark.postgres, pytest.mark.training]

SECONDS = 25.0
SEED = int(os.environ.get("SEED", "7"))


def test_a_short_soak_breaks_no_promise() -> None:
    """Nothing ran twice, no step lost or doubled, every run ends as its script deserves, budgets hold."""
    with tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        report = Soak(Path(folder), SEED, SECONDS).run()
    assert report.broken == [], report.text()
