"""The campaign that README.md shows is kept, and the command beside its figures still makes them."""

from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from dscampaign import jobs
from dscampaign.orchestrator.cli.main import campaign as command

ROOT = Path(jobs.__file__).parents[1]
KEPT = ROOT / "benchmarks/results/zero-precision-matrix-h100"


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def store_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "campaign.db").write_bytes(gzip.decompress((KEPT / "campaign.db.gz").read_bytes()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("store_folder")
@pytest.mark.parametrize("page", [ROOT / "README.md", KEPT / "recommend.txt"], ids=["readme", "kept"])
def test_the_command_prints_what_is_shown(page: Path) -> None:
    shown = re.search(
        r"^\$ campaign (recommend .*sqlite:///campaign\.db.*)\n((?:.|\n)*?)(?:^```|\Z)", page.read_text(), re.MULTILINE
    )
    assert shown
    printed = CliRunner().invoke(command, shlex.split(shown[1]))
    assert printed.exit_code == 0, printed.output
    for part in shown[2].split("...\n"):
        assert one_line(part) in one_line(printed.output)
