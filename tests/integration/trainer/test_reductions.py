"""Gradients under ZeRO 3 are what DeepSpeed makes of them, and nothing begins before what it needs is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.comm import coalesced_collectives
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from torch import Tensor, nn

from dscampaign.jobs.trainer import deepspeed_patches
from dscampaign.jobs.trainer.deepspeed_patches import join_gradients, stay_ahead

RANKS = 3
SHAPES = ((3, 4), (5,), (1,), (2, 7), (4,))  # 12 elements divide among the ranks; 5, 14, 1 and 4 do not


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage3, "reduce_scatter_coalesced", coalesced_collectives.reduce_scatter_coalesced)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands for ranks that all have the same gradients."""

    def reduce_scatter(output: Tensor, given: Tensor, **_options: Any) -> None:
        output.copy_(given.view(RANKS, -1)[ranks.rank] * RANKS)

    ranks = SimpleNamespace(rank=0)
    comm = SimpleNamespace(
        get_rank=lambda _group: ranks.rank, get_world_size=lambda _group: RANKS, reduce_scatter_fn=reduce_scatter
    )
    for module in (coalesced_collectives, stage3):
        monkeypatch.setattr(module, "dist", comm)
    return ranks


def gradients(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> list[Tensor]:
    return [torch.arange(1, prod(shape) + 1, dtype=dtype).view(shape) / 7 for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", [SHAPES, ((6, 2), (9,)), ((1,), (1,)), ((3, 4),), ((5,),)])
def test_the_parts_of_a_rank_are_those_that_deepspeed_gives_it(
    group: SimpleNamespace, shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    join_gradients()
    for rank in range(RANKS):
        group.rank = rank
        expected = coalesced_collectives.reduce_scatter_coalesced(gradients(shapes, dtype))
        found = stage3.reduce_scatter_coalesced(gradients(shapes, dtype))
        assert [one.numel() for one in found] == [one.numel() for one in expected]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)


def optimizer(**changes: Any) -> Any:
    """ZeRO 3's on the last rank, which has a part of the first two weights and none of the third."""
    one = DeepSpeedZeroOptimizer_Stage3.__new__(DeepSpeedZeroOptimizer_Stage3)
    held = {number: torch.full((4,), 10.0) for number in range(len(SHAPES))}
    values = {"offload_optimizer": False, "offload_param": False, "zenflow": False, "micro_step_id": 0} | changes
    one.__dict__.update(
        {"reduce_and_partition_stream": None} | values,
        gradient_accumulation_dtype=torch.float32,
        _offload_boundary_param_ids=set(),
        _DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition=held,
        _get_param_partition_rank=lambda _weight: RANKS - 1,
        _swap_out_offload_fp32_gradients=lambda *_nothing: None,
    )
    return one


def kept(one: Any, dtype: torch.dtype) -> dict[int, Tensor]:
    """What this rank has of the gradients once a bucket of a pass is reduced."""
    weights, parts = [], []
    for number, shape in enumerate(SHAPES[:3]):
        weight: Any = nn.Parameter(torch.empty(shape))
        part = -(-prod(shape) // RANKS)
        weight.ds_id, weight.ds_numel = number, prod(shape)
        weight.partition_numel, weight.grad = lambda part=part: part, torch.ones(shape)
        weights.append(weight)
        parts.append(torch.arange(max(0, min(part, prod(shape) - part * (RANKS - 1))), dtype=dtype))
    one.partition_grads(weights, parts)
    assert all(weight.grad is None for weight in weights)
    found: dict[int, Tensor] = one._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("micro_step", [0, 1])
def test_a_step_keeps_what_deepspeed_keeps(micro_step: int, dtype: torch.dtype) -> None:
    expected, changed = kept(optimizer(micro_step_id=micro_step), dtype), optimizer(micro_step_id=micro_step)
    stay_ahead(changed)
    assert "partition_grads" in vars(changed)
    found = kept(changed, dtype)
    for number, one in expected.items():
        torch.testing.assert_close(found[number], one, rtol=0.0, atol=0.0)
    assert found[0].tolist() == ([0, 1, 2, 3] if micro_step == 0 else [10, 11, 12, 13])
    assert found[2].tolist() == [10.0] * 4


@pytest.mark.parametrize("changes", [{"offload_optimizer": True}, {"offload_param": True}, {"zenflow": True}])
def test_optimizers_with_states_elsewhere_stay_as_they_are(changes: dict[str, Any]) -> None:
    one = optimizer(**changes)
    stay_ahead(one)
    assert "partition_grads" not in vars(one)
    stay_ahead(object())


@pytest.mark.parametrize("norm_type", [2, 1, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("factor", "finite"), [(1.0, True), (0.0, True), (float("nan"), False), (float("inf"), False)])
def test_norms_are_those_that_deepspeed_measures(
    factor: float, finite: bool, dtype: torch.dtype, norm_type: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = SimpleNamespace(all_reduce=lambda norm, **_options: norm.mul_(RANKS), ReduceOp=stage3.dist.ReduceOp)
    monkeypatch.setattr(stage3, "dist", ranks)
    weights = [nn.Parameter(torch.empty(shape)) for shape in SHAPES]
    alone = {"_assert_same_partition_group": lambda _weights: None, "_get_param_partition_group": lambda _weight: None}
    one = optimizer(model_parallel_group=None, model_parallel_rank=0, device="cpu", sequence_parallel_size=1, **alone)
    monkeypatch.setattr(type(one), "_autoep_expert_parallel_group", lambda *_any: None)
    parts = [part.view(-1) * factor for part in gradients(SHAPES, dtype)]
    expected, own = one.get_grad_norm_direct(parts, weights, norm_type), one.get_grad_norm_direct
    stay_ahead(one)
    assert one.get_grad_norm_direct != own
    torch.testing.assert_close(one.get_grad_norm_direct(parts, weights, norm_type), expected, rtol=1e-12, atol=0.0)
    assert (float(expected) >= 0) == finite


def test_norms_that_count_on_some_ranks_are_left_to_deepspeed() -> None:
    one = optimizer(model_parallel_group=object())
    stay_ahead(one)
    assert "partition_grads" in vars(one)
    assert "get_grad_norm_direct" not in vars(one)


class _Gathers:
    """Stands for the stream of gathers."""

    def __init__(self, wait: Callable[[object], None]) -> None:
        self.wait_stream = wait

    def __str__(self) -> str:
        return "gathers"


@pytest.mark.parametrize("fails", [False, True])
def test_gathers_begin_when_the_device_has_made_the_step(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    @contextmanager
    def stream(_one: object) -> Iterator[None]:
        happened.append("on the stream of gathers")
        yield

    def own(_timers: object) -> None:
        happened.append(f"DeepSpeed's own, {len(one.persistent_parameters)} to gather")
        if fails:
            raise RuntimeError

    computes = SimpleNamespace(wait_stream=lambda other: happened.append(f"what computes waits for {other}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: computes)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    arrives = SimpleNamespace(wait=lambda: happened.append("gathered"))
    whole = [SimpleNamespace(all_gather_coalesced=lambda _weights: arrives)]
    one = SimpleNamespace(_post_step=own, persistent_parameters=whole)
    gathers: Any = _Gathers(lambda other: happened.append(f"gathers wait for what computes: {other is computes}"))
    deepspeed_patches._gather_without_waiting(one, gathers)
    if fails:
        with pytest.raises(RuntimeError):
            one._post_step(set())
    else:
        one._post_step(set())
    assert one.persistent_parameters is whole
    assert happened[:2] == ["gathers wait for what computes: True", "DeepSpeed's own, 0 to gather"]
    # what computes may read these weights at once: GatheredParameters waits for none that is there already
    gathered = ["on the stream of gathers", "gathered", "what computes waits for gathers"]
    assert happened[2:] == ([] if fails else gathered)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, False),
        ({"zero_quantized_weights": True}, True),
        ({"zero_quantized_nontrainable_weights": True}, True),
        ({"zero_hpz_partition_size": 2}, True),
        ({"comm_dtype": torch.bfloat16}, True),
    ],
)
def test_weights_that_hooks_gather_in_another_form_are_left_to_deepspeed(
    changes: dict[str, Any], left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stream:
        """Stands for one of a GPU."""

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda: None)
    monkeypatch.setattr(deepspeed_patches, "_FollowedStream", Stream)
    quantized = {"zero_quantized_weights": False, "zero_quantized_nontrainable_weights": False} | changes
    marks = {name: value for name, value in changes.items() if name == "comm_dtype"}  # as torch_autocast does
    coordinator = SimpleNamespace(_PartitionedParameterCoordinator__allgather_stream=Stream())
    one = optimizer(
        reduce_and_partition_stream=Stream(),
        zero_hpz_partition_size=changes.get("zero_hpz_partition_size", 1),
        persistent_parameters=[SimpleNamespace(**marks)],
        parameter_offload=SimpleNamespace(param_coordinator=coordinator, **quantized),
    )
    stay_ahead(one)
    assert ("_post_step" not in vars(one)) == left
