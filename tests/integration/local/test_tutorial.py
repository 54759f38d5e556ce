"""The commands of the tutorial print what its page shows, except for numbers and the name of the machine."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.unit.test_docs import blocks

PAGE = REPOSITORY / "docs" / "tutorial.md"
SHOWN = [text.removeprefix("$ campaign ").partition("\n") for text in blocks(PAGE, "") if text.startswith("$ ")]


def stable(text: str) -> str:
    """Numbers and space are not compared."""
    text = re.sub(r"\d[\d.,:]*", "0", text.replace(socket.gethostname(), "node1"))
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("commands", [2, pytest.param(len(SHOWN), marks=pytest.mark.nightly)])
def test_the_tutorial_shows_what_its_commands_print(commands: int, tmp_path: Path) -> None:
    for language in ("python", "yaml"):
        for text in blocks(PAGE, language):
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    for words, _, shown in SHOWN[:commands]:
        program = [sys.executable, "-m", "dscampaign.orchestrator.cli", *shlex.split(words)]
        ended = subprocess.run(
            program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout
        expected = re.escape(stable(shown)).replace(re.escape("..."), ".*")
        assert re.fullmatch(expected, stable(ended.stdout)), (words, ended.stdout)
