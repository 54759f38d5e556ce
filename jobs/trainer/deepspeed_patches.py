"""All patches of DeepSpeed: they save work, and change no result of a step.

They apply to verified versions of DeepSpeed only; another may lack what this module imports, so the engine loads it
only to apply them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.compile.passes import zero_1_and_2_compile
from deepspeed.runtime import compiler
from deepspeed.runtime.torch_autocast import has_comm_dtype
from deepspeed.runtime.zero import (
    parameter_offload,
    partition_parameters,
    partitioned_param_coordinator,
    stage3,
    stage_1_and_2,
)
from deepspeed.runtime.zero.partition_parameters import AllGatherCoalescedHandle, ZeroParamStatus
from deepspeed.runtime.zero.partitioned_param_coordinator import InflightParamRegistry
from deepspeed.runtime.zero.utils import get_norm_dtype
from deepspeed.utils import nvtx
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TrainerConfig

_NUMBER_OF_STREAM: Final[Any] = getattr(torch._C, "_cuda_getCurrentStream", None)  # noqa: SLF001
_OF_ZERO_3: Final = (stage3, parameter_offload, partition_parameters, partitioned_param_coordinator)
_OPTIMIZER: Final = "DeepSpeedZeroOptimizer_Stage3"
_KEPT: Final = f"_{_OPTIMIZER}__param_id_to_grad_partition"
_GATHERS: Final = "_PartitionedParameterCoordinator__allgather_stream"


def patch_process(config: TrainerConfig, ds_config: Mapping[str, Any]) -> None:
    """Apply the patches of functions, before DeepSpeed makes its engine."""
    if "muon" not in str(ds_config.get("optimizer", {}).get("type", "")).lower():
        leave_muon_uncompiled()
    _patch_functions(reduces=not config.deepcompile)  # it reduces in operators of its own


def patch_optimizer(optimizer: Any, config: TrainerConfig) -> None:
    """Apply the patches of an engine's optimizer."""
    remove_waits(optimizer)
    if not config.deepcompile:
        stay_ahead(optimizer)


@cache
def _patch_functions(*, reduces: bool) -> None:
    spare_the_host()
    join_gathered_weights()
    if reduces:
        join_gradients()


# -- the start, and all stages ---------------------------------------------------------------------------------


def keep_reduce_buckets() -> None:
    """Make compiled backward passes of this process keep their buckets; call it before anything is compiled.

    DeepCompile with ZeRO 1 and accumulation aborts in its second step in DeepSpeed 0.19.8: the end of each backward
    pass drops the buckets in which gradients are reduced, and a pass that only accumulates makes none again. Kept
    buckets cost their memory while the optimizer steps.
    """
    zero_1_and_2_compile.should_release_reduce_buckets = lambda *_graph: False


def leave_muon_uncompiled() -> None:
    """Import DeepSpeed's Muon, which is not used, without compiling its functions.

    With ZeRO, DeepSpeed 0.19.8 imports it at each start, to see whether the optimizer is a Muon. That would load all of
    PyTorch's compiler, which takes each rank two seconds.
    """
    original, compiler.compile = compiler.compile, lambda: lambda function: function
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        compiler.compile = original


def spare_the_host() -> None:
    """Remove work of DeepSpeed that does not change the result of a step.

    ZeRO 3 does each of these hundreds of times a step: ranges for Nsight Systems; messages that are not shown; walks
    through the modules for parameters; searches for a GPU at each lookup of the current stream.
    """
    nvtx.enable_nvtx = False
    for module in _OF_ZERO_3:
        replaced = {
            "print_rank_0": _only_wanted(getattr(module, "print_rank_0", None)),
            "iter_params": torch.compiler.disable(_parameters),
            "debug_param2name_id_shape_device": lambda _weight: "",
        }
        for name in replaced.keys() & vars(module).keys():
            setattr(module, name, replaced[name])
    accelerator = get_accelerator()
    if accelerator.device_name() == "cuda" and _NUMBER_OF_STREAM is not None:
        accelerator.current_stream = _current_stream


def compile_plain_linear() -> None:
    """Give the compiler PyTorch's own linear layer; call it once weights are partitioned.

    ZeRO 3 replaces the layer so that no gathered weight stays alive between the passes. Its layer reads the weight's
    number, so PyTorch 2.11 compiles each block anew and gives up after eight; compiled code keeps no weight alive
    anyway.
    """
    plain = getattr(partition_parameters.InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    eager = F.linear
    if plain is None or eager is plain or getattr(eager, "compiles", False):
        return

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - as PyTorch's
        layer = plain if torch.compiler.is_compiling() else eager
        output: Tensor = layer(input, weight, bias)
        return output

    linear.compiles = True  # type: ignore[attr-defined]
    F.linear = linear


def _only_wanted(show: Any) -> Callable[..., None]:
    def shown(message: str, debug: bool = False, force: bool = False) -> None:
        if debug or force:
            show(message, debug, force)

    return shown


_KNOWN: Final[WeakKeyDictionary[nn.Module, dict[bool, tuple[nn.Parameter, ...]]]] = WeakKeyDictionary()


def _parameters(module: Any, recurse: bool = False) -> Iterator[nn.Parameter]:
    known = _KNOWN.setdefault(module, {})
    if recurse not in known:
        known[recurse] = tuple(module.parameters(recurse=recurse))
    used: Iterable[tuple[str, nn.Parameter]] = module.ds_external_parameters()
    return chain(known[recurse], (parameter for _, parameter in used))


def _current_stream(device: int | None = None) -> torch.cuda.Stream:
    index = torch.cuda.current_device() if device is None else device
    return _stream(index, _NUMBER_OF_STREAM(index))


@cache
def _stream(index: int, _number: object) -> torch.cuda.Stream:
    """Return the same object for each stream; PyTorch keeps the streams themselves as long as the process lasts."""
    return torch.cuda.current_stream(index)


def remove_waits(optimizer: Any) -> None:
    """Make this optimizer clip without waiting; leave all but ZeRO 1 and 2 in bf16 on a GPU unchanged.

    While it clips, DeepSpeed 0.19.8 reads four times a step from the device whether a norm is finite. The device then
    idles until the host queues work again, which costs a fifth of the speed on a small batch. In bf16 the device can
    decide by itself: without a loss scale no step is left out.
    """
    if not isinstance(optimizer, stage_1_and_2.DeepSpeedZeroOptimizer):
        return
    if optimizer.dtype != torch.bfloat16 or optimizer.check_grad_overflow or optimizer.cpu_offload:
        return
    stage_1_and_2.mask_nan_or_inf_with_val_inplace = _mask_not_finite
    limit = float(optimizer.clip_grad)

    def clip(gradients: Sequence[Tensor], norm: Tensor) -> None:
        if limit > 0.0:
            factor = limit / torch.clamp(norm + 1e-6, min=limit)
            factor = torch.where(torch.isfinite(norm) & (norm >= 0), factor, 0.0)  # as for an infinite norm
            torch._foreach_mul_(list(gradients), factor)

    optimizer.unscale_and_clip_grads = clip


def _mask_not_finite(norm: Tensor, device: object = None, val: float = -1.0) -> None:  # noqa: ARG001 - as DeepSpeed's
    """Mark an invalid norm on the device; DeepSpeed's own function sends the mark from the host each time."""
    norm.masked_fill_(~torch.isfinite(norm), val)


# -- weights under ZeRO 3 --------------------------------------------------------------------------------------


def join_gathered_weights() -> None:
    """Make each gather a single copy and event for all its weights.

    DeepSpeed 0.19.8 cuts out and joins the parts of all ranks weight by weight.
    """
    own: Any = AllGatherCoalescedHandle.wait

    def wait(self: Any, handle_dependency: bool = True) -> None:
        flat = _flat(self) if handle_dependency and not self.complete else None
        if flat is None:
            own(self, handle_dependency)
        else:
            _join(self, flat)

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


def _pop_gather(registry: InflightParamRegistry, weight: nn.Parameter) -> Any:
    gather = registry.data.pop(weight)
    for other in [other for other, its in registry.data.items() if its is gather]:
        del registry.data[other]
    return gather


# -- gradients under ZeRO 3, and the end of a step -------------------------------------------------------------


def join_gradients() -> None:
    """Order the gradients of each bucket by a single copy."""
    stage3.reduce_scatter_coalesced = _joined(stage3.reduce_scatter_coalesced)


def stay_ahead(optimizer: Any) -> None:
    """Keep and measure reduced gradients in a single call each, and make the device wait instead of the host.

    DeepSpeed 0.19.8 makes the host wait at the end of each backward pass and of each step. Only for ZeRO 3 with all
    states on the device; other optimizers stay unchanged.
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
    offload = optimizer.parameter_offload
    quantized = offload.zero_quantized_weights or offload.zero_quantized_nontrainable_weights
    rounded = any(has_comm_dtype(weight) for weight in optimizer.persistent_parameters)  # for autocast
    if not quantized and not rounded and optimizer.zero_hpz_partition_size <= 1:  # hooks gather what is kept
        _gather_without_waiting(optimizer, getattr(offload.param_coordinator, _GATHERS))


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
