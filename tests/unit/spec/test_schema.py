"""The schema of a spec accepts what the validator accepts, and helps with what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.spec.schema import spec_schema
from dscampaign.orchestrator.spec.yaml_source import load
from dscampaign.tests.support import REPOSITORY

SCHEMA = spec_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
SPECS = sorted([*REPOSITORY.glob("templates/*.yaml"), *REPOSITORY.glob("examples/**/*.yaml")])

LENIENT = """
name: lenient
executor: local
ranks_per_node:
command: train.py --lr {lr} --on {on}
env: {A: 1, B: true, C: text}
slurm: {cpus-per-task: 8, time: 30, exclusive: no, setup: "module load a\\nmodule load b", gpus_per_node: 8}
train: {steps: 1e3, compile: true, dataset: wikitext, dropout: 0, model: {n_layer: 2}}
container: {image: "${IMAGE}", runtime: apptainer}
forward: [wandb, mlflow]
retry: {oom: }
then: {eval: {command: "eval.py {checkpoint}", slurm: {time: 5}}}
matrix:
  lr: [1e-3, 0.01]
  on: [true, text]
  case: [{label: a, train.lr: 0.1}, {label: b, zero_stage: 2}]
  slurm.cpus-per-task: [8, 16]
  deepspeed.zero_optimization.overlap_comm: [true, false]
  include: [{label: c, lr: 0.5}]
  exclude:
"""


def errors(data: Any) -> list[str]:
    return [".".join(map(str, error.absolute_path)) for error in VALIDATOR.iter_errors(data)]


def test_every_spec_of_this_repository_fits() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert len(SPECS) > 15
    assert {path.name: wrong for path in SPECS if (wrong := errors(load(path.read_text(), path.name).data))} == {}


def test_what_the_validator_lets_pass_fits() -> None:
    assert errors(load(LENIENT, "spec").data) == []


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"trian": {}}, ""),
        ({"train": {"step": 3}}, "train"),
        ({"train": {"steps": "ten"}}, "train.steps"),
        ({"train": {"steps": True}}, "train.steps"),
        ({"train": {"compile": "ture"}}, "train.compile"),
        ({"train": {"precision": "bf61"}}, "train.precision"),
        ({"slurm": {"partitoin": "gpu"}}, "slurm"),
        ({"repeats": 0}, "repeats"),
        ({"matrix": {"lr": 0.1}}, "matrix.lr"),
        ({"matrix": {"include": [3]}}, "matrix.include.0"),
    ],
)
def test_a_typo_and_a_wrong_type_do_not(fields: dict[str, Any], place: str) -> None:
    assert errors({"name": "x", **fields}) == [place]


def test_an_editor_shows_meaning_values_and_default_of_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    train = json.loads(capsys.readouterr().out)["$defs"]["TrainConfig"]["properties"]
    assert all(field["description"] and "](" not in field["description"] for field in train.values())
    assert train["lr"]["default"] == 3e-4
    assert "bf16" in json.dumps(train["precision"])
    assert Path(REPOSITORY / "docs/spec.md").read_text().count("yaml-language-server") == 1
    assert SCHEMA["properties"]["matrix"]["properties"]["include"]["description"]
