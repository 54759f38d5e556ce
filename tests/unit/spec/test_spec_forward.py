"""`forward:` in a spec: its forms, what is wrong with it, and what becomes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dscampaign.jobs.shared.layout import CampaignPaths
from dscampaign.jobs.shared.payload import Payload
from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.orchestrator.executors import job_request as attempts
from dscampaign.orchestrator.spec.expand import expand
from dscampaign.orchestrator.spec.model import Spec
from dscampaign.tests.support.cli_world import make_world
from dscampaign.tests.support.spec_files import load_spec


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    (tmp_path / "train.py").touch()
    return tmp_path


def read(folder: Path, forward: str) -> Spec:
    (folder / "spec.yaml").write_text(f"name: n\ncommand: train.py\nforward: {forward}\n")
    return load_spec(folder / "spec.yaml")


def problem(folder: Path, forward: str) -> Problem:
    with pytest.raises(SpecError) as caught:
        read(folder, forward)
    [found] = caught.value.problems
    return found


@pytest.mark.parametrize(
    ("text", "column", "field", "message", "hint"),
    [
        ("[wandbb]", 10, "forward", "'wandbb' is no tool", "write [wandb, tensorboard, mlflow]"),
        ("{wandb: {projct: x}}", 19, "forward.wandb.projct", "unknown field", 'did you mean "forward.wandb.project"?'),
        ("{wandb: {api_key: abc}}", 28, "forward.wandb.api_key", "api_key looks like a secret", "export it"),
        (
            "{mlflow: {tracking_uri: 'https://a:b@h'}}",
            34,
            "forward.mlflow.tracking_uri",
            "looks like a secret",
            "export",
        ),
        ("{mlflow: {tracking_uri: mlruns}}", 34, "forward.mlflow.tracking_uri", "is not a URL", "sqlite:////"),
        ("{tensorboard: {dir: logs}}", 30, "forward.tensorboard.dir", "is not an absolute path", "leave it out"),
    ],
)
def test_what_is_wrong_is_said_where_it_stands(
    folder: Path, text: str, column: int, field: str, message: str, hint: str
) -> None:
    found = problem(folder, text)
    assert (found.line, found.column, found.field) == (3, column, field)
    assert message in found.message
    assert hint in (found.hint or "")


def test_a_password_does_not_get_in_by_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER", "https://me:hidden@h")
    assert "the password in an address" in problem(folder, "{mlflow: {tracking_uri: '${SERVER}'}}").message


def test_it_is_no_part_of_the_experiment(folder: Path) -> None:
    [without], [with_it] = expand(read(folder, "")), expand(read(folder, "[wandb, tensorboard]"))
    assert without.config_hash == with_it.config_hash


def test_the_agents_are_told_the_tools_and_the_parameters(folder: Path, tmp_path: Path) -> None:
    [run] = expand(read(folder, "{tensorboard: {dir: /logs}}"))
    row = make_world(tmp_path)
    with row.store.read() as conn:
        from dscampaign.db import queries

        stored = replace(queries.runs(conn, row.campaign_id)[0], params={"lr": 0.1})
    payloads = attempts.Payloads(CampaignPaths(tmp_path, "sweep"), store=None)
    told = payloads.of(stored, run.config, "/runs/a/g0001", generation=1, micro_batch=None, token="t", attempt_id=1)
    told.write(tmp_path / "payload.json")
    found = Payload.of(json.loads((tmp_path / "payload.json").read_bytes()), tmp_path / "payload.json")
    assert (found.forward, found.params) == ({"tensorboard": {"dir": "/logs"}}, {"lr": 0.1})
