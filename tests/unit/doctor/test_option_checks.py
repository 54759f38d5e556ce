"""A section that cannot be checked here is remarked, and never refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dscampaign.orchestrator.doctor.option_checks import OptionChecks
from dscampaign.orchestrator.spec.model import RunConfig

THEN = "DeepSpeed checks it when a run starts, and may ignore unknown keys"
OPTIONS: dict[str, Any] = {"deepspeed": {"zero_optimization": {"overlap_com": True}}, "command": ["train.py"]}


def checked(python: Path, **given: Any) -> tuple[list[Any], list[str]]:
    remarks: list[str] = []
    findings = OptionChecks(remarks.append)([RunConfig.model_validate({**given, "python": str(python)})])
    return findings, remarks


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def test_nothing_is_started_without_a_section(tmp_path: Path) -> None:
    assert checked(tmp_path / "none", command=["train.py"]) == ([[]], [])
    assert checked(tmp_path / "none", train={"model": "gpt2"}) == ([[]], [])


def test_a_python_that_cannot_answer_is_remarked(tmp_path: Path) -> None:
    bare = script(tmp_path / "bare", f'exec {sys.executable} -S "$@"')
    broken = script(tmp_path / "broken", "echo no such module >&2; exit 3")
    reasons = {
        tmp_path / "none": "cannot be run here (No such file or directory)",
        bare: "has no DeepSpeed here",
        broken: "failed: no such module",
    }
    for python, reason in reasons.items():
        findings, remarks = checked(python, **OPTIONS)
        assert findings == [[]]
        assert remarks == [f"note: `deepspeed` not checked: {python} {reason}; {THEN}"]


def test_a_python_that_others_can_write_is_not_run(tmp_path: Path) -> None:
    python = script(tmp_path / "shared", f"touch {tmp_path}/ran")
    python.chmod(0o702)
    findings, [remark] = checked(python, **OPTIONS)
    assert findings == [[]]
    assert remark.startswith(f"note: `deepspeed` not checked: {python} is not run: others can write to {python}")
    assert not (tmp_path / "ran").exists()
