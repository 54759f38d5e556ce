"""ZeRO 3's reductions and end of a step, with less work for the host; the gradients are the same.

DeepSpeed 0.19.8 cuts the gradients of a bucket into the parts of all ranks, joins them, and keeps and measures the
results weight by weight. At the end of each backward pass and of each step the host waits for the device, so it is
never ahead for long, and the device waits for it. A version that works in another way is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.torch_autocast import has_comm_dtype
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.utils import get_norm_dtype
from torch import Tensor

_REDUCES: Final = "reduce_scatter_coalesced"
_OPTIMIZER: Final = "DeepSpeedZeroOptimizer_Stage3"
_KEPT: Final = f"_{_OPTIMIZER}__param_id_to_grad_partition"
_GATHERS: Final = "_PartitionedParameterCoordinator__allgather_stream"


def join_gradients() -> None:
    """Order the gradients of each bucket of this process by a single copy. Once is enough."""
    original = getattr(stage3, _REDUCES, None)
    if original is not None and hasattr(torch, "_chunk_cat") and not getattr(original, "joins", False):
        setattr(stage3, _REDUCES, _joined(original))


def stay_ahead(optimizer: Any) -> None:
    """Keep and measure reduced gradients in a single call each, and make the device wait instead of the host.

    Only for ZeRO 3 with all states on the device; other optimizers stay unchanged.
    """
    if type(optimizer).__name__ != _OPTIMIZER or optimizer.offload_optimizer or optimizer.offload_param:
        return
    if optimizer.zenflow or not hasattr(optimizer, _KEPT):
        return
    optimizer.partition_grads = lambda weights, parts: _keep(optimizer, weights, parts)
    if getattr(optimizer, "model_parallel_group", None) is None:  # else a norm counts on some ranks, by its weight
        optimizer.get_grad_norm_direct = _measured_at_once(optimizer.get_grad_norm_direct)
    reduces = optimizer.reduce_and_partition_stream
    if type(reduces) is not torch.cuda.Stream or reduces == torch.cuda.default_stream():
        return
    optimizer.reduce_and_partition_stream = _FollowedStream()  # type: ignore[no-untyped-call]
    gathers = getattr(optimizer.parameter_offload.param_coordinator, _GATHERS, None)
    if gathers is not None and _gathered_as_kept(optimizer):
        _gather_without_waiting(optimizer, gathers)


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
