"""The campaigns whose results are shown are kept, and the commands beside their figures still make them."""

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
RESULTS = ROOT / "benchmarks/results"
KEPT = sorted(RESULTS.glob("*/recommend.txt"))
VERSIONS = (ROOT / "docs/is-it-slower.md", RESULTS / "versions-h100")
SHOWN = [
    (ROOT / "README.md", RESULTS / "zero-precision-matrix-h100"),
    VERSIONS,
    *((page, page.parent) for page in KEPT),
]


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(("page", "folder"), SHOWN, ids=["readme", "versions", *(page.parent.name for page in KEPT)])
def test_the_command_prints_what_is_shown(
    page: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "campaign.db").write_bytes(gzip.decompress((folder / "campaign.db.gz").read_bytes()))
    monkeypatch.chdir(tmp_path)
    command_and_output = r"^\$ campaign ((?:recommend|compare) .*sqlite:///campaign\.db.*)\n((?:.|\n)*?)(?:^```|\Z)"
    examples = re.findall(command_and_output, page.read_text(), re.MULTILINE)
    assert examples
    CliRunner().invoke(command, ["db", "upgrade", "--store", "sqlite:///campaign.db"])
    for words, shown in examples:
        printed = CliRunner().invoke(command, shlex.split(words), standalone_mode=False)
        assert printed.exception is None, printed.output
        for part in shown.split("...\n"):
            assert one_line(part) in one_line(printed.output)
