"""What in `deepspeed:` does not go together, or with a run's other fields: it would end it or change what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign.orchestrator.errors import Problem, SpecError
from dscampaign.tests.support.spec_files import load_runs

UNTESTED = {"zero_allow_untested_optimizer": True}


def problems(folder: Path, train: dict[str, Any], deepspeed: dict[str, Any], **more: Any) -> list[Problem]:
    spec = folder / "spec.yaml"
    common = {"model": "gpt2", "tokenizer": "bytes", "dataset": "wikitext", "global_batch": 8, "steps": 4}
    given = {"name": "s", "train": {**common, **train}, "deepspeed": deepspeed, **more}
    spec.write_text(yaml.safe_dump(given, sort_keys=False))
    try:
        load_runs(spec)
    except SpecError as error:
        return error.problems
    return []


@pytest.mark.parametrize(
    ("train", "deepspeed", "field"),
    [
        ({}, {"activation_checkpointing": {"partition_activations": True}}, "activation_checkpointing"),
        ({"zero_stage": 1}, {"optimizer": {"type": "Adafactor"}, **UNTESTED}, "optimizer.type"),
        ({}, {"optimizer": {"params": {"lr": 0.1}}}, "optimizer.params.lr"),
        ({}, {"scheduler": {}}, "scheduler"),
        (
            {"zero_stage": 3},
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            "zero_optimization.offload_optimizer.device",
        ),
        ({}, {"checkpoint": {"use_node_local_storage": True}}, "checkpoint.use_node_local_storage"),
    ],
)
def test_what_the_built_in_training_cannot_serve_is_refused_where_it_stands(
    tmp_path: Path, train: dict[str, Any], deepspeed: dict[str, Any], field: str
) -> None:
    (found,) = problems(tmp_path, train, deepspeed)
    assert found.field == f"deepspeed.{field}"
    assert found.line > 1
    assert found.hint
    (tmp_path / "train.py").touch()
    assert not problems(tmp_path, train, deepspeed, command="train.py")


@pytest.mark.parametrize(
    ("deepspeed", "field", "hint"),
    [
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage", "use train.zero_stage"),
        ({"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage", "use train.zero_stage"),
        ({"gradient_clipping": 0.5}, "gradient_clipping", "use train.grad_clip"),
        ({"bf16": {"enabled": False}}, "bf16.enabled", "use train.precision"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps", "use train.global_batch"),
    ],
)
def test_a_value_of_train_has_its_place_there(tmp_path: Path, deepspeed: dict[str, Any], field: str, hint: str) -> None:
    (tmp_path / "train.py").touch()
    for more in ({}, {"command": "train.py"}):
        (found,) = problems(tmp_path, {}, deepspeed, **more)
        assert (found.field, found.hint) == (f"deepspeed.{field}", hint)


@pytest.mark.parametrize(
    ("train", "deepspeed"),
    [
        ({}, {"checkpoint": {"use_node_local_storage": False}}),
        ({"zero_stage": 1}, {"optimizer": {"type": "Lion"}}),
        ({"zero_stage": 3, "compile": True}, {"optimizer": {"type": "Lion"}}),
        ({"zero_stage": 3}, {"zero_optimization": {"offload_optimizer": None}}),
        ({}, {"autotuning": {"enabled": False}, "dataloader_drop_last": False}),
    ],
)
def test_what_is_served_passes(tmp_path: Path, train: dict[str, Any], deepspeed: dict[str, Any]) -> None:
    assert not problems(tmp_path, train, deepspeed)


def test_ranks_that_an_axis_gives_to_no_whole_group_are_told_of_which_field(tmp_path: Path) -> None:
    train = {"tensor_parallel": 2, "global_batch": 24}
    (found,) = problems(tmp_path, train, {}, matrix={"ranks_per_node": [5, 4]}, executor="local")
    message = "train.tensor_parallel: 2 does not divide the 5 ranks of the run"
    assert (found.field, found.message) == ("matrix.ranks_per_node[0]", message)
