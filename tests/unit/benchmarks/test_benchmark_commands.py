"""`make bench` runs every file and folder of `benchmarks` that is a benchmark, each by the command that it names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dscampaign.benchmarks.shared.results import REPOSITORY

FOLDER = REPOSITORY / "benchmarks"
FILES = sorted(FOLDER.glob("*.py"))


def test_there_are_benchmarks() -> None:
    assert FOLDER / "store.py" in FILES


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in FILES])
def test_a_file_says_by_which_command_it_runs_without_any_argument(file: Path) -> None:
    lines = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()
    ways = f"python benchmarks/{file.name}", f"python -m dscampaign.benchmarks.{file.stem}"
    said = [words for line in lines for way in ways if (words := line.strip()).startswith(way)]
    assert said, "what is no benchmark belongs into `shared`"
    assert any(words.partition("[")[0].strip() in ways for words in said), "an argument that must be given"
