"""Weights that arrive under ZeRO 3 are those that DeepSpeed makes of the parts, however it is told to bring them."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import InflightParamRegistry
from torch import Tensor, nn

from dscampaign.jobs.trainer.deepspeed_patches import join_gathered_weights

RANKS = 3
SHAPES = ((3, 4), (5,), (1,), (2, 7))  # 12 elements divide among the ranks, 5 and 14 do not, 1 leaves ranks without any


@pytest.fixture(autouse=True)
def _put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllGatherCoalescedHandle, "wait", AllGatherCoalescedHandle.wait)
    monkeypatch.setattr(InflightParamRegistry, "pop", InflightParamRegistry.pop)


def on_its_way(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    """A weight of which each rank has a part."""
    weight: Any = nn.Parameter(torch.empty(0, dtype=dtype))
    weight.ds_status, weight.ds_shape, weight.ds_numel = ZeroParamStatus.INFLIGHT, torch.Size(shape), prod(shape)
    weight.ds_tensor = torch.empty(-(-prod(shape) // RANKS), dtype=dtype)
    weight.ds_tensor.ds_numel = weight.ds_tensor.numel()
    return weight


def gather(dtype: torch.dtype = torch.float32, sent: torch.dtype = torch.float32) -> AllGatherCoalescedHandle:
    weights = [on_its_way(shape, dtype) for shape in SHAPES]
    part = sum(weight.ds_tensor.ds_numel for weight in weights)
    flat = torch.arange(RANKS * part, dtype=sent)
    parts = [flat.narrow(0, rank * part, part) for rank in range(RANKS)]
    return AllGatherCoalescedHandle(SimpleNamespace(wait=lambda: None), weights, parts, RANKS)


def arrived(handle: AllGatherCoalescedHandle) -> list[Tensor]:
    handle.wait()
    assert handle.complete
    assert all(weight.ds_status is ZeroParamStatus.AVAILABLE for weight in handle.params)
    return [weight.data for weight in handle.params]


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)],
)
def test_weights_are_those_that_deepspeed_makes_of_the_parts(dtype: torch.dtype, sent: torch.dtype) -> None:
    expected = arrived(gather(dtype, sent))
    join_gathered_weights()
    handle = gather(dtype, sent)
    found = arrived(handle)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0)
        assert one.is_contiguous()
    before = [weight.data_ptr() for weight in found]
    assert [weight.data_ptr() for weight in arrived(handle)] == before  # a second wait does nothing


@pytest.mark.parametrize(
    "changes", [{"use_secondary_tensor": True}, {"quantization": object()}, {"partitions": [torch.empty(1)] * RANKS}]
)
def test_what_is_brought_in_another_way_stays_deepspeeds_own(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(
        AllGatherCoalescedHandle, "wait", lambda _self, handle_dependency=True: waited.append(handle_dependency)
    )
    join_gathered_weights()
    handle = gather()
    vars(handle).update(changes)
    handle.wait()
    gather().wait(handle_dependency=False)
    assert waited == [True, False]


def test_what_arrives_in_one_gather_is_waited_for_once() -> None:
    join_gathered_weights()
    registry, first, second = InflightParamRegistry(), gather(), gather()
    for handle in (first, second):
        for weight in handle.params:
            registry[weight] = handle
    assert registry.pop(first.params[1]) is first
    assert list(registry) == second.params
