"""The rendered DeepSpeed configuration: complete, and one that DeepSpeed itself accepts."""

from typing import Any

import pytest

from dscampaign.jobs.shared.ds_config import render

TRAIN: dict[str, Any] = {
    "precision": "bf16",
    "zero_stage": 2,
    "grad_clip": 1.0,
    "lr": 3e-4,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
}


def rendered(overrides: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    return render(TRAIN | train, micro_batch=4, accumulation=3, world_size=2, overrides=overrides or {})


def test_overrides_are_laid_over_section_by_section() -> None:
    config = rendered({"zero_optimization": {"overlap_comm": False}, "optimizer": {"params": {"eps": 1e-6}}, "dump": 1})
    assert config["zero_optimization"] == {"stage": 2, "overlap_comm": False}
    assert config["optimizer"]["params"]["eps"] == 1e-6
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.95]
    assert config["dump"] == 1


def test_adamw_is_fused_unless_deepspeeds_own_is_asked_for() -> None:
    assert rendered()["optimizer"]["params"]["fused"] is True
    assert "fused" not in rendered({"optimizer": {"params": {"torch_adam": False}}})["optimizer"]["params"]
    assert rendered({"optimizer": {"params": {"fused": False}}})["optimizer"]["params"]["fused"] is False
    for other in ("foreach", "differentiable"):
        assert "fused" not in rendered({"optimizer": {"params": {other: True}}})["optimizer"]["params"]


def test_another_optimizer_replaces_adamw() -> None:
    lion = {"type": "Lion", "params": {"betas": [0.9, 0.99]}}
    assert rendered({"optimizer": lion})["optimizer"] == {
        "type": "Lion",
        "params": {"lr": 3e-4, "weight_decay": 0.1, "betas": [0.9, 0.99]},
    }


@pytest.mark.training
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_deepspeed_accepts_the_rendered_configuration(
    monkeypatch: pytest.MonkeyPatch, precision: str, zero_stage: int
) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.config import DeepSpeedConfig

    train = TRAIN | {"precision": precision, "zero_stage": zero_stage}
    config = DeepSpeedConfig(render(train, micro_batch=4, accumulation=3, world_size=1, overrides={}))
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == (12, 4)
    assert (config.gradient_accumulation_steps, config.zero_optimization_stage) == (3, zero_stage)
    assert config.timers_config.enabled is False
    assert (config.float16_config.enabled, config.bfloat16_config.enabled) == (precision == "fp16", precision == "bf16")
