"""Clipping without asking the device does what DeepSpeed's own does; buckets stay where DeepSpeed would miss them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.compile import fx
from deepspeed.compile.passes import zero_1_and_2_compile
from deepspeed.runtime.zero import stage_1_and_2
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor

from dscampaign.jobs.trainer.deepspeed_patches import keep_reduce_buckets, remove_waits
from dscampaign.tests.integration.trainer.attempts import train_config


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "mask_nan_or_inf_with_val_inplace"
    monkeypatch.setattr(stage_1_and_2, name, getattr(stage_1_and_2, name))


def optimizer(clip: float = 1.0, **changes: Any) -> Any:
    one = DeepSpeedZeroOptimizer.__new__(DeepSpeedZeroOptimizer)
    values = {"dtype": torch.bfloat16, "check_grad_overflow": False, "cpu_offload": False, "clip_grad": clip, **changes}
    one.__dict__.update(values, loss_scaler=SimpleNamespace(cur_scale=1.0, loss_scale=1.0), device="cpu")
    one.custom_loss_scaler = False
    return one


def clipped(one: Any, norm: float) -> list[Tensor]:
    gradients = [torch.tensor([3.0, -4.0]), torch.tensor([0.5])]
    one.unscale_and_clip_grads(gradients, torch.tensor(norm))
    return gradients


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 5.0, 1e20, float("inf"), -1.0])
@pytest.mark.parametrize("clip", [1.0, 0.25])
def test_gradients_become_what_deepspeed_makes_of_them(norm: float, clip: float) -> None:
    expected = clipped(optimizer(clip), norm)
    changed = optimizer(clip)
    remove_waits(changed)
    assert "unscale_and_clip_grads" in vars(changed)
    for found, one in zip(clipped(changed, norm), expected, strict=True):
        torch.testing.assert_close(found, one)


def test_a_norm_that_is_not_finite_is_marked_as_deepspeed_does() -> None:
    remove_waits(optimizer())
    for value, mark in ((float("nan"), -1.0), (float("inf"), -1.0), (2.0, 2.0)):
        norm = torch.tensor(value)
        stage_1_and_2.mask_nan_or_inf_with_val_inplace(norm)
        assert norm == mark


@pytest.mark.parametrize("changes", [{"dtype": torch.float16}, {"check_grad_overflow": True}, {"cpu_offload": True}])
def test_others_stay_as_they_are(changes: dict[str, Any]) -> None:
    one = optimizer(**changes)
    remove_waits(one)
    assert "unscale_and_clip_grads" not in vars(one)
    remove_waits(object())


ACCUMULATING = {"deepcompile": True, "zero_stage": 1, "global_batch": 8, "micro_batch": 2}  # four passes
ONE_GRAPH = [(7, True)]


@pytest.fixture(autouse=True)
def _put_buckets_back(monkeypatch: pytest.MonkeyPatch) -> None:
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
    keep_reduce_buckets(train_config(**{**ACCUMULATING, **changes, "world_size": 1}))
    assert zero_1_and_2_compile.should_release_reduce_buckets(ONE_GRAPH, 7) is dropped
