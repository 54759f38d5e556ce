"""Clipping without asking the device: what DeepSpeed's own does to the gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero import stage_1_and_2
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor

from dscampaign.jobs.trainer.deepspeed_patches import remove_waits


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
