"""The JSON documents have the version and the fields of their schemas, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator

from dscampaign.orchestrator.cli.main import campaign, main
from dscampaign.orchestrator.errors import ExitCode, UserError, exit_code_of
from dscampaign.scripts.documents import documents
from dscampaign.scripts.write_docs import documented
from dscampaign.tests.support.cli_world import make_world
from dscampaign.tests.support.planted import Planted, PlantStore, Try, planted_url

__all__ = ["planted_url"]

SPEC = """
name: mine
executor: local
command: train.py {depth}
train: {global_batch: 4, steps: 4}
matrix: {depth: [4, 8]}
"""


def closed(node: Any) -> Any:
    """The schema without the freedom to have further fields."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    new = {key: closed(value) for key, value in node.items()}
    return new | {"additionalProperties": False} if isinstance(node.get("properties"), dict) else new


def wrong(name: str, document: Any) -> list[str]:
    validator = Draft202012Validator(closed(documents()[name].schema()))
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    make_world(folder).store.close()
    (folder / "train.py").touch()
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "wrong.yaml").write_text(SPEC.replace("steps", "step"))
    (folder / "job.log").write_text("Traceback (most recent call last):\nKeyError: 'x'\n")
    return folder


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("status", "status sweep", 0),
        ("list", "list", 0),
        ("run", "explain sweep small", 0),
        ("campaign", "explain sweep", 0),
        ("settings", "explain --config", 0),
        ("export", "export sweep --what runs", 0),
        ("validate", "validate spec.yaml", 0),
        ("validate", "validate wrong.yaml", 2),
        ("plan", "plan spec.yaml", 0),
        ("diagnose", "diagnose job.log", 0),
    ],
)
def test_a_document_has_the_fields_of_its_schema(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str, code: int
) -> None:
    monkeypatch.chdir(folder)
    assert main([*words.split(), "-o", "json"]) == code
    assert wrong(name, json.loads(capsys.readouterr().out)) == []


def test_documents_of_results_have_the_fields_of_their_schemas(
    planted_url: PlantStore, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Planted("slow", step_s=(0.2, 0.21, 0.2), params={"zero_stage": 3}, train={"zero_stage": 3}, gpu="H100")
    fast = Planted("fast", params={"zero_stage": 1}, train={"zero_stage": 1}, gpu="H100", nan_from=90)
    bad = Planted("bad", params={"zero_stage": 2}, train={"zero_stage": 2}, tries=(Try(0, 30, "oom"), Try(30, 100)))
    url = planted_url(slow, fast, bad)
    commands = {"report": "report", "recommend": "recommend", "compare": "compare slow fast --fail-if slower=3%"}
    for name, words in commands.items():
        assert main([*words.split(), "-o", "json", "--store", url]) in (0, 1, 4)
        assert (name, wrong(name, json.loads(capsys.readouterr().out))) == (name, [])


def test_every_command_with_json_has_a_schema() -> None:
    with click.Context(campaign, info_name="campaign") as ctx:
        printing = {
            verb.command_path.removeprefix("campaign ")
            for verb in documented(ctx)
            if any("json" in getattr(param.type, "choices", ()) for param in verb.command.params)
        }
    assert printing == {words.split()[0] for each in documents().values() for words in each.commands.split(", ")}
    assert all(each.schema()["properties"]["schema_version"]["const"] == 1 for each in documents().values())


def test_an_error_has_the_exit_code_of_the_table() -> None:
    assert exit_code_of(UserError("x")) is ExitCode.USAGE
    assert exit_code_of(FileNotFoundError()) is ExitCode.FAILED
    assert exit_code_of(KeyError()) is ExitCode.BUG
    assert all(code.meaning.endswith(".") for code in ExitCode)
