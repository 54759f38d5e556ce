"""Configurations that share their equal sections are those that pydantic alone would have read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from dscampaign.orchestrator.spec.expand import SharedSections
from dscampaign.orchestrator.spec.model import RunConfig

GIVEN: list[dict[str, Any]] = [
    {},
    {"train": {"lr": 0.1}, "slurm": {"nodes": 2}},
    {"train": {"lr": 0.2}, "slurm": {"nodes": 2}, "command": "train.py --x 1"},
    {"train": {"lr": 1}, "retry": {"crash": 1}, "env": {"A": 1}},
    {"train": {"lr": 1.0}, "forward": ["wandb"]},
]


def test_equal_sections_are_one_object_and_nothing_else_changes() -> None:
    sections = SharedSections()
    read = [sections.read(data) for data in GIVEN]
    assert read == [RunConfig.model_validate(data) for data in GIVEN]
    assert read[1].slurm is read[2].slurm
    assert read[1].train is not read[2].train
    assert [config.model_fields_set for config in read] == [set(data) for data in GIVEN]


@pytest.mark.parametrize("first", [1, True, "1"])
def test_values_that_are_only_equal_are_told_apart(first: object) -> None:
    """`compile: 1` is a mistake, however often `compile: true` was right."""
    sections = SharedSections()
    others = [value for value in (1, True, "1") if value is not first]
    for value in (first, *others):
        data = {"train": {"compile": value}}
        try:
            expected: object = RunConfig.model_validate(data)
        except ValidationError as error:
            expected = str(error)
        try:
            found: object = sections.read(data)
        except ValidationError as error:
            found = str(error)
        assert found == expected
