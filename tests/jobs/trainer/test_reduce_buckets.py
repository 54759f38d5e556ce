"""Buckets of DeepCompile's reduction: that they stay where DeepSpeed would miss them, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from deepspeed.compile import fx
from deepspeed.compile.passes import zero_1_and_2_compile

from dscampaign.jobs.trainer.reduce_buckets import keep_where_needed

from .attempts import train_config

ACCUMULATING = {"deepcompile": True, "zero_stage": 1, "global_batch": 8, "micro_batch": 2}  # four passes
ONE_GRAPH = [(7, True)]


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_1_and_2_compile, "should_release_reduce_buckets", fx.should_release_reduce_buckets)


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        ({}, False),
        ({"micro_batch": 8}, True),
        ({"zero_stage": 2}, True),
        ({"deepcompile": False}, True),
    ],
)
def test_buckets_stay_only_where_a_pass_may_reduce_nothing(changes: dict[str, Any], dropped: bool) -> None:
    keep_where_needed(train_config(**{**ACCUMULATING, **changes, "world_size": 1}))
    assert zero_1_and_2_compile.should_release_reduce_buckets(ONE_GRAPH, 7) is dropped
