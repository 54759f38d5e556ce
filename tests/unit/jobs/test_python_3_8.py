"""What runs by file path, under whatever Python a training environment has."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from dscampaign import jobs


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("guard.py", set()),
        ("inside.py", set()),
        ("rank.py", set()),
        ("report.py", set()),
        ("tasks.py", set()),
        ("trainer/preflight.py", {"torch", "deepspeed", "transformers"}),
        ("trainer/training_python.py", {"torch", "deepspeed"}),
    ],
)
def test_a_script_is_python_3_8_and_imports_nothing_of_this_package(script: str, more: set[str]) -> None:
    tree = ast.parse((Path(jobs.__file__).parent / script).read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {"." * node.level + (node.module or "") for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | more
