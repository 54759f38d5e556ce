"""Mistakes in `command`, and in other text, are told once, where they are, before anything runs."""

from pathlib import Path

import pytest

from dscampaign.tests.unit.spec.test_mistakes import problems

OWN = "name: x\nexecutor: local\n"
QUOTE = "YAML reads this as a mapping; quote it: '{lr}'"


@pytest.fixture(autouse=True)
def _script(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("text", "field", "hint"),
    [
        ("command: [train.py, --lr, {lr}]", "command[2]", QUOTE),
        ("command: [train.py, --lr, null]", "command[2]", "quote it if it is text"),
        ("command: [train.py, [1, 2]]", "command[1]", "quote it if it is text"),
        ("command: [{lr}, 3]", "command[0]", QUOTE),
        ("command: [train.py]\nenv: {LR: {lr}}", "env.LR", QUOTE),
        ("command: [train.py]\nlocal: {setup: [{lr}]}", "local.setup[0]", QUOTE),
        ("command: [train.py]\npython: {lr}", "python", QUOTE),
        ("command: [train.py]\nmetrics: {step: 's (.)', loss: {lr}}", "metrics.loss", None),
    ],
)
def test_what_is_no_text_is_refused_where_it_stands(tmp_path: Path, text: str, field: str, hint: str | None) -> None:
    (problem,) = problems(tmp_path, f"{OWN}{text}\n")
    assert problem.field == field
    assert problem.message.startswith("expected ")
    assert hint is None or problem.hint == hint


@pytest.mark.parametrize(
    "command",
    ["python train.py {depth}", "python3 train.py {depth}", "train.py 'a {depth}", "-m", "[train.py, {depth}]"],
)
@pytest.mark.parametrize("name", ["command", "comand"])
def test_a_wrong_command_is_not_also_missing(tmp_path: Path, command: str, name: str) -> None:
    matrix = "matrix: {depth: [1, 2]}\n" if "depth" in command else ""
    (problem,) = problems(tmp_path, f"{OWN}{name}: {command}\n{matrix}")
    assert problem.field.startswith(name)


@pytest.mark.parametrize("command", ['bash -c "echo hi"', "./run.sh", "run.sh", "data", "srun train.py", "-u train.py"])
def test_a_command_starts_with_a_python_script(tmp_path: Path, command: str) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "data").mkdir()
    (problem,) = problems(tmp_path, f"{OWN}command: {command}\n")
    assert problem.field == "command"
    assert (problem.hint or "").startswith("start with a Python script")
