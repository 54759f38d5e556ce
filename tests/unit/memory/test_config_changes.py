"""What may be changed of a run that needs less memory: only what its spec could have asked for itself."""

from __future__ import annotations

from typing import Any

import pytest

from dscampaign.orchestrator.memory.config_changes import changed, next_change
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import ConfigChange

ALL: tuple[ConfigChange, ...] = ("activation_checkpointing", "offload_optimizer", "zero_stage")


def taken(deepspeed: dict[str, Any] | None = None, **train: Any) -> list[str]:
    """All changes that a run takes one after another."""
    given = {"model": "gpt2", "dataset": "text", "global_batch": 64, "steps": 10, **train}
    config = RunConfig.model_validate({"train": given, "deepspeed": deepspeed or {}})
    changes: list[str] = []
    while (change := next_change(config, ALL, changes)) is not None:
        changes.append(change)
        assert changed(config, changes).train.zero_stage <= 3
    return changes


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"zero_stage": 1}, ["activation_checkpointing", "offload_optimizer", "zero_stage=2", "zero_stage=3"]),
        (
            {"zero_stage": 0},
            ["activation_checkpointing", "zero_stage=1", "offload_optimizer", "zero_stage=2", "zero_stage=3"],
        ),
        ({"engine": "ddp"}, ["activation_checkpointing"]),
        ({"zero_stage": 1, "deepcompile": True}, ["activation_checkpointing", "zero_stage=2", "zero_stage=3"]),
        ({"zero_stage": 1, "fused_loss": True}, ["activation_checkpointing", "offload_optimizer", "zero_stage=2"]),
        ({"zero_stage": 3, "offload": "full"}, ["activation_checkpointing"]),
    ],
)
def test_rungs_lead_to_what_a_spec_may_ask_for(train: dict[str, Any], expected: list[str]) -> None:
    assert taken(**train) == expected


@pytest.mark.parametrize(
    ("deepspeed", "expected"),
    [
        ({"optimizer": {"type": "Lamb"}}, ["activation_checkpointing"]),
        (
            {"optimizer": {"type": "Lion"}},
            ["activation_checkpointing", "zero_stage=1", "offload_optimizer", "zero_stage=2", "zero_stage=3"],
        ),
    ],
)
def test_rungs_leave_out_what_a_section_of_deepspeed_does_not_go_with(
    deepspeed: dict[str, Any], expected: list[str]
) -> None:
    assert taken(deepspeed, zero_stage=0) == expected
