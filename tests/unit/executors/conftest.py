"""Slurm's commands as scripts on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dscampaign.tests.support.fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
    return fake
