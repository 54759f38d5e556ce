"""Whether the Python of a spec has what the training needs."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dscampaign.orchestrator.doctor import check_host as check_python
from dscampaign.orchestrator.doctor.check import Check, Severity
from dscampaign.orchestrator.doctor.requirements import Requirements
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.tests.support.waiting import wait_until


def check(**fields: Any) -> Check:
    given = {"command": ["a.py"], "executor": "local", **fields}
    config = RunConfig.model_validate({name: value for name, value in given.items() if value is not None})
    (found,) = check_python.python_checks("here", [Requirements(("run",), config, 1, 0, on_gpus=False)])
    return found


@pytest.fixture
def packages(tmp_path: Path) -> dict[str, str]:
    """An environment that has both packages."""
    for name in ("torch", "deepspeed", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('loaded')")
    return {"PYTHONPATH": str(tmp_path)}


def python_without(tmp_path: Path) -> str:
    """An interpreter that sees the standard library alone."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o700)
    return str(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    python = python_without(tmp_path)
    found = check(python=python)
    assert (found.verdict, found.seen) == (Severity.PROBLEM, f"{python} has no torch, no deepspeed")
    assert "pip install torch deepspeed" in found.next
    assert check(python=python, executor="slurm").verdict is Severity.WARNING
    assert check(python=python, executor="slurm", slurm={"setup": ["module load torch"]}).verdict is Severity.NOTE
    assert "no transformers" in check(python=python, command=None).seen


def test_an_interpreter_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(python=str(tmp_path / "none")).verdict is Severity.PROBLEM
    assert check(python=str(tmp_path / "none"), executor="slurm").verdict is Severity.NOTE
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho bad >&2\nexit 3\n")
    broken.chmod(0o700)
    assert check(python=str(broken)).seen.endswith("fails: bad")
    broken.write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(check_python, "_WAIT_S", 0.2)
    assert "did not answer" in check(python=str(broken)).seen


def test_nothing_is_left_of_an_interpreter_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = tmp_path / "around"
    around.write_text('#!/bin/sh\nsh -c "sleep 600; exit" "$0"\n')
    around.chmod(0o700)
    monkeypatch.setattr(check_python, "_WAIT_S", 1.0)
    assert "did not answer" in check(python=str(around)).seen
    wait_until(lambda: not running(around), "the end of what it had started")


def running(program: Path) -> list[Path]:
    """Processes that have its path among their words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [entry.parent] if str(program).encode() in entry.read_bytes().split(b"\0") else []
    return found
