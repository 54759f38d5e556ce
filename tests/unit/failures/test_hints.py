"""Hints are stored, and read where another campaign or run may be meant: a command in them lacks the names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dscampaign.orchestrator import failures

FILES = sorted(Path(failures.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_verdict_names_the_command_for_logs_without_a_run(file: Path) -> None:
    assert not re.findall(r"\"[^\"\n]*`campaign logs`", file.read_text())
