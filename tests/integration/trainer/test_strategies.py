"""Every strategy that people compare learns what fp32 without DeepSpeed learns, on two CPU ranks and real text."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from statistics import fmean
from typing import Any

import pytest

from dscampaign.tests.integration.trainer.attempts import LLAMA, TINY, Attempt, require_same
from dscampaign.tests.integration.trainer.conftest import in_lanes, selected

pytestmark = pytest.mark.training

STEPS = int(os.environ.get("STRATEGY_STEPS", "8"))
"""More every night."""
HALF = STEPS // 2
LONG: dict[str, Any] = {"steps": STEPS, "eval_batches": 2, "checkpoint_every": HALF}
FP32: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"zero_stage": stage} for stage in range(4)},
    **{f"zero{stage}-offload": {"zero_stage": stage, "offload": "optimizer"} for stage in (2, 3)},
    "zero3-offload-full": {"zero_stage": 3, "offload": "full"},
    "fused-loss": {"fused_loss": True},
    "eager-attention": {"attention": "eager"},
    "compiled": {"compile": True},
    "compiled-zero2": {"compile": True, "zero_stage": 2},
    "compiled-zero3": {"compile": True, "zero_stage": 3},
    "compiled-zero3-offload-full": {"compile": True, "zero_stage": 3, "offload": "full"},
    "compiled-zero3-sequence-parallel": {"compile": True, "zero_stage": 3, "sequence_parallel": 2},
    "recomputed-zero3": {"activation_checkpointing": True, "zero_stage": 3},
    "compiled-ddp": {"compile": True, "engine": "ddp", "zero_stage": 0},
    "fsdp2": {"engine": "fsdp2", "zero_stage": 0},
    "fsdp2-offload": {"engine": "fsdp2", "zero_stage": 0, "offload": "full"},
    "fsdp2-recomputed": {"engine": "fsdp2", "zero_stage": 0, "activation_checkpointing": True},
    "compiled-fsdp2": {"engine": "fsdp2", "zero_stage": 0, "compile": True},
    "fsdp2-accumulated": {"engine": "fsdp2", "zero_stage": 0, "micro_batch": 1},
    "fsdp2-reduced-last": {"engine": "fsdp2", "zero_stage": 0, "micro_batch": 1, "fsdp2_reduce": "last"},
    "fsdp2-fused": {"engine": "fsdp2", "zero_stage": 0, "fused_loss": True},
    "micro1": {"engine": "ddp", "zero_stage": 0, "micro_batch": 1},
    "sequence-parallel": {"sequence_parallel": 2},
    "installed-zero1": {"deepspeed_patches": False},
    "installed-zero3": {"deepspeed_patches": False, "zero_stage": 3},
    "installed-compiled-zero2": {"deepspeed_patches": False, "compile": True, "zero_stage": 2},
    "installed-compiled-zero3": {"deepspeed_patches": False, "compile": True, "zero_stage": 3},
}
BF16: dict[str, dict[str, Any]] = {
    **{f"zero{stage}-bf16": {"zero_stage": stage, "precision": "bf16"} for stage in (1, 3)},
    "ddp-bf16": {"engine": "ddp", "zero_stage": 0, "precision": "bf16"},
    "fsdp2-bf16": {"engine": "fsdp2", "zero_stage": 0, "precision": "bf16"},
    "compiled-fused-bf16": {"compile": True, "fused_loss": True, "precision": "bf16"},
}
FP8: dict[str, dict[str, Any]] = {
    "fp8-ddp": {"engine": "ddp", "zero_stage": 0},
    **{f"fp8-zero{stage}": {"zero_stage": stage} for stage in (0, 1, 2)},
    "fp8-fsdp2": {"engine": "fsdp2", "zero_stage": 0},
    "fp8-compiled-zero2": {"zero_stage": 2, "compile": True},
    "fp8-recomputed-zero1": {"zero_stage": 1, "activation_checkpointing": True},
}
RESUMED = (
    "ddp",
    "compiled",
    "compiled-zero3",
    "zero2-offload",
    "zero3-offload-full",
    "ddp-bf16",
    "fsdp2",
    "fsdp2-offload",
)
EVERYTHING = {
    "ddp": {"engine": "ddp", "zero_stage": 0},
    "llama-bf16": {"engine": "ddp", "zero_stage": 0, "precision": "bf16", "model": LLAMA},
    **FP32,
    **BF16,
    **{name: {**way, "precision": "fp8", "model": LLAMA} for name, way in FP8.items()},
}
DEFAULT = (
    *("zero0", "zero1", "zero2", "zero3", "zero3-offload-full", "fsdp2", "micro1", "sequence-parallel"),
    *("installed-zero3", "zero3-bf16", "ddp-bf16", "fp8-zero2", "fp8-fsdp2"),
)
"""The rest is trained every night."""


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, train_many: Callable[..., dict[str, Attempt]]) -> dict[str, Attempt]:
    """One attempt of each strategy, and the baseline."""
    return train_many(
        **{name: {**LONG, **EVERYTHING[name]} for name in {"ddp", "llama-bf16", "zero1", *selected(request)}}
    )


@pytest.fixture(scope="module")
def resumed(
    request: pytest.FixtureRequest, trained: dict[str, Attempt], train_many: Callable[..., dict[str, Attempt]]
) -> dict[str, Attempt]:
    """Attempts that begin where the others had their checkpoint half-way."""
    halfway = f"g0001-step{HALF:08d}"
    names = selected(request, "resumed")
    return train_many(
        **{name: {**LONG, **EVERYTHING[name], "resume": trained[name].checkpoints / halfway} for name in names}
    )


@pytest.mark.parametrize("name", in_lanes(FP32, DEFAULT))
def test_fp32_strategies_learn_the_same(trained: dict[str, Attempt], name: str) -> None:
    """To 1e-3 nats at every step: they add up the same numbers in other orders."""
    for metric, tolerance in (("loss", 1e-3), ("eval_loss", 1e-3), ("lr", 0.0)):
        assert trained[name].values(metric) == pytest.approx(trained["ddp"].values(metric), abs=tolerance)


@pytest.mark.parametrize("name", in_lanes(BF16, DEFAULT))
def test_bf16_strategies_stay_close(trained: dict[str, Attempt], name: str) -> None:
    """To 0.02 nats in the mean, and 0.05 at any step: weights of 8 bits round a loss of 5.5 by as much."""
    expected, found = trained["ddp"].values("loss"), trained[name].values("loss")
    assert found == pytest.approx(expected, abs=0.05)
    assert fmean(found.values()) == pytest.approx(fmean(expected.values()), abs=0.02)


@pytest.mark.parametrize("name", in_lanes(FP8, DEFAULT))
def test_fp8_stays_close_to_bf16(trained: dict[str, Attempt], name: str) -> None:
    """To 0.02 nats in the mean, and 0.05 at any step; equal losses would come from layers that were not replaced."""
    expected, losses = trained["llama-bf16"].values("loss"), trained[name].values("loss")
    assert losses == pytest.approx(expected, abs=0.05)
    assert fmean(losses.values()) == pytest.approx(fmean(expected.values()), abs=0.02)
    assert losses != pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", in_lanes(RESUMED, DEFAULT))
def test_a_resumed_strategy_goes_on_as_if_nothing_had_happened(
    trained: dict[str, Attempt], resumed: dict[str, Attempt], name: str
) -> None:
    for metric in ("loss", "grad_norm", "lr", "eval_loss"):
        expected = {step: value for step, value in trained[name].values(metric).items() if step > HALF}
        assert len(expected) in (1, HALF)
        assert resumed[name].values(metric) == pytest.approx(expected, abs=1e-6)


def test_ranks_that_share_layers_learn_the_same(
    trained: dict[str, Attempt], train_many: Callable[..., dict[str, Attempt]]
) -> None:
    """In a launch of its own: in one process DeepSpeed has one size of group for all models."""
    require_same(train_many(shared={**LONG, **FP32["zero1"], "tensor_parallel": 2})["shared"], trained["zero1"])


def test_a_compiled_rank_learns_the_same(train_many: Callable[..., dict[str, Attempt]]) -> None:
    """In graphs whose operators run as they are; the strategies above have kernels generated, which takes a minute."""
    small = {"world_size": 1, "steps": 4, "eval_batches": 1, "model": {**TINY["model"], "n_layer": 1}}
    ways = {"joined": {"zero_stage": 1}, "blocks": {"zero_stage": 3}}
    compiled = {name: {**small, **way, "compile": True} for name, way in ways.items()}
    found = train_many(1, backend="aot_eager", eager=small, **compiled)
    for name, metric in product(ways, ("loss", "eval_loss")):
        assert found[name].values(metric) == pytest.approx(found["eager"].values(metric), abs=1e-3)
