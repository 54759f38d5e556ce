"""Patches of ZeRO 3: weights arrive and gradients are reduced with less work for the host; the values are the same.

DeepSpeed 0.19.8 cuts out and joins the parts of all ranks weight by weight, and makes the host wait for the device
after a few weights, at the end of each backward pass and of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.torch_autocast import has_comm_dtype
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import InflightParamRegistry
from deepspeed.runtime.zero.utils import get_norm_dtype
from torch import Tensor

_OPTIMIZER: Final = "DeepSpeedZeroOptimizer_Stage3"
_KEPT: Final = f"_{_OPTIMIZER}__param_id_to_grad_partition"
_GATHERS: Final = "_PartitionedParameterCoordinator__allgather_stream"


# -- weights ---------------------------------------------------------------------------------------------------


def join_gathered_weights() -> None:
    """Make each gather of this process a single copy and event for all its weights. Once is enough."""
    own: Any = AllGatherCoalescedHandle.wait
    if getattr(own, "joins", False):
        return

    def wait(self: Any, handle_dependency: bool = True) -> None:
        flat = _flat(self) if handle_dependency and not self.complete else None
        if flat is None:
            own(self, handle_dependency)
        else:
            _join(self, flat)

    wait.joins = True  # type: ignore[attr-defined]
    AllGatherCoalescedHandle.wait = wait
    InflightParamRegistry.pop = _pop_gather


def _flat(handle: Any) -> Tensor | None:
    """Return the arriving data, of shape (ranks x part of a rank,); None if DeepSpeed's own way is needed."""
    if handle.use_secondary_tensor or handle.quantization:
        return None
    flat: Tensor | None = handle.partitions[0]._base  # noqa: SLF001 - the parts are views of it
    part = sum(weight.ds_tensor.ds_numel for weight in handle.params)
    return flat if flat is not None and flat.numel() == handle.world_size * part else None


def _join(handle: Any, flat: Tensor) -> None:
    handle.allgather_handle.wait()
    parts = [weight.ds_tensor.ds_numel for weight in handle.params]
    wholes = [flat.new_empty(handle.world_size, part) for part in parts]
    torch.split_with_sizes_copy(flat.view(handle.world_size, -1), parts, dim=1, out=wholes)
    for weight, whole in zip(handle.params, wholes, strict=True):
        # the padding is at the end of the last parts
        alone = whole if whole.numel() == weight.ds_numel else whole.view(-1)[: weight.ds_numel]
        weight.data = alone.view(weight.ds_shape).to(weight.ds_tensor.dtype)
        weight.ds_status = ZeroParamStatus.AVAILABLE
    accelerator = get_accelerator()
    if not accelerator.is_synchronized_device():
        flat.record_stream(accelerator.current_stream())
    handle.complete = True


def _pop_gather(registry: InflightParamRegistry, weight: torch.nn.Parameter) -> Any:
    gather = registry.data.pop(weight)
    for other in [other for other, its in registry.data.items() if its is gather]:
        del registry.data[other]
    return gather


# -- gradients, and the end of a step --------------------------------------------------------------------------


def join_gradients() -> None:
    """Order the gradients of each bucket of this process by a single copy. Once is enough."""
    if not getattr(stage3.reduce_scatter_coalesced, "joins", False):
        stage3.reduce_scatter_coalesced = _joined(stage3.reduce_scatter_coalesced)


def stay_ahead(optimizer: Any) -> None:
    """Keep and measure reduced gradients in a single call each, and make the device wait instead of the host.

    Only for ZeRO 3 with all states on the device; other optimizers stay unchanged.
    """
    if type(optimizer).__name__ != _OPTIMIZER or optimizer.offload_optimizer or optimizer.offload_param:
        return
    if optimizer.zenflow:
        return
    optimizer.partition_grads = lambda weights, parts: _keep(optimizer, weights, parts)
    if getattr(optimizer, "model_parallel_group", None) is None:  # else a norm counts on some ranks, by its weight
        optimizer.get_grad_norm_direct = _measured_at_once(optimizer.get_grad_norm_direct)
    reduces = optimizer.reduce_and_partition_stream
    if type(reduces) is not torch.cuda.Stream or reduces == torch.cuda.default_stream():
        return
    optimizer.reduce_and_partition_stream = _FollowedStream()  # type: ignore[no-untyped-call]
    if _gathered_as_kept(optimizer):
        _gather_without_waiting(optimizer, getattr(optimizer.parameter_offload.param_coordinator, _GATHERS))


class _FollowedStream(torch.cuda.Stream):
    """A stream that the current stream waits for, in place of the host."""

    def synchronize(self) -> None:
        torch.cuda.current_stream().wait_stream(self)


def _joined(original: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """Return this rank's parts of gradients, averaged over all ranks; the last part of a gradient may be shorter."""

    @torch.no_grad()
    def reduce_scatter_coalesced(tensors: Sequence[Tensor], group: Any = None) -> list[Tensor]:
        if len(tensors) < 2:  # original copies nothing then
            return original(tensors, group)
        rank, ranks = stage3.dist.get_rank(group), stage3.dist.get_world_size(group)
        parts = [-(-tensor.numel() // ranks) for tensor in tensors]
        ours = [min(max(tensor.numel() - rank * part, 0), part) for tensor, part in zip(tensors, parts, strict=True)]
        flat = torch._chunk_cat([tensor.view(-1) for tensor in tensors], 0, ranks)  # noqa: SLF001 - as FSDP2 does
        flat.div_(ranks)
        own = flat[rank]
        stage3.dist.reduce_scatter_fn(own, flat.view(-1), group=group)
        return [_first(length, whole) for length, whole in zip(ours, own.split(parts), strict=True)]

    reduce_scatter_coalesced.joins = True  # type: ignore[attr-defined]
    return reduce_scatter_coalesced


def _keep(optimizer: Any, weights: Sequence[Any], parts: Sequence[Tensor]) -> None:
    held = getattr(optimizer, _KEPT)
    with_data = [(weight, part) for weight, part in zip(weights, parts, strict=True) if part.numel()]
    if with_data:
        sums = [_first(part.numel(), held[weight.ds_id]) for weight, part in with_data]
        add = torch._foreach_add_ if optimizer.micro_step_id else torch._foreach_copy_
        add(sums, [part.to(optimizer.gradient_accumulation_dtype) for _, part in with_data])
    accelerator = get_accelerator()
    shared = not accelerator.is_synchronized_device()
    for weight in weights:
        if shared and weight.grad is not None:
            weight.grad.record_stream(accelerator.current_stream())
        weight.grad = None


def _first(length: int, flat: Tensor) -> Tensor:
    """Of a vector; most need no view."""
    return flat if flat.numel() == length else flat[:length]


def _measured_at_once(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """DeepSpeed's norm over all ranks, of the norms of this rank's gradients instead of the gradients."""

    def get_grad_norm_direct(gradients: Sequence[Tensor], params: Sequence[Any], norm_type: float = 2) -> Tensor:
        if not gradients:
            return own(gradients, params, norm_type)
        norms = torch.stack(torch._foreach_norm(list(gradients), norm_type, dtype=get_norm_dtype()))  # noqa: SLF001
        return own([norms], params[:1], norm_type)

    return get_grad_norm_direct


def _gathered_as_kept(optimizer: Any) -> bool:
    """Return whether a hook gathers the kept weights unchanged: not quantized, copied, or rounded for autocast."""
    offload = optimizer.parameter_offload
    quantized = offload.zero_quantized_weights or offload.zero_quantized_nontrainable_weights
    rounded = any(has_comm_dtype(weight) for weight in optimizer.persistent_parameters)
    return not quantized and not rounded and optimizer.zero_hpz_partition_size <= 1


def _gather_without_waiting(optimizer: Any, gathers: torch.cuda.Stream) -> None:
    """Start gathers after a step when the device has updated the weights; weights that stay whole are gathered first.

    They may be read at once, without a hook that would wait for them.
    """
    own = optimizer._post_step  # noqa: SLF001 - where DeepSpeed waits

    def after_step(timer_names: Any) -> None:
        gathers.wait_stream(torch.cuda.current_stream())
        whole, optimizer.persistent_parameters = optimizer.persistent_parameters, []
        try:
            own(timer_names)
        finally:
            optimizer.persistent_parameters = whole
        if whole:
            with torch.cuda.stream(gathers):
                whole[0].all_gather_coalesced(whole).wait()
            torch.cuda.current_stream().wait_stream(gathers)

    optimizer._post_step = after_step  # noqa: SLF001
