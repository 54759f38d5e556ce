"""Hints and reasons are stored, and read where another run may be meant: a command in them lacks the names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.orchestrator import failures, reconcile

FILES = sorted(path for package in (failures, reconcile) for path in Path(package.__file__ or "").parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_no_reason_names_a_command_without_its_run(file: Path) -> None:
    assert [
        text for text in _texts(file) if re.search(r"`campaign (?:logs|retry)`(?! runs it again if named)", text)
    ] == []


def _texts(file: Path) -> Iterator[str]:
    """All strings but those that stand by themselves, as docstrings do."""
    tree = ast.parse(file.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value
