"""Patches of DeepSpeed, see `patches`; and its operators, built in time."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, wraps
from itertools import chain
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.compile.passes import zero_1_and_2_compile
from deepspeed.runtime import compiler
from deepspeed.runtime.zero import (
    parameter_offload,
    partition_parameters,
    partitioned_param_coordinator,
    stage3,
    stage_1_and_2,
)
from deepspeed.utils import nvtx
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TrainerConfig

_PRINTS: Final = "print_rank_0"
_DESCRIBES: Final = "debug_param2name_id_shape_device"
_PARAMETERS: Final = "iter_params"
_NUMBER_OF_STREAM: Final[Any] = getattr(torch._C, "_cuda_getCurrentStream", None)  # noqa: SLF001
_UNDER_NSIGHT: Final = "NSYS_PROFILING_SESSION_ID"
_MUON: Final = "deepspeed.runtime.zero.muon.original_muon"
_OF_ZERO_3: Final = (stage3, parameter_offload, partition_parameters, partitioned_param_coordinator)


def keep_reduce_buckets(config: TrainerConfig) -> None:
    """Make compiled backward passes of this process keep their buckets; call it before anything is compiled.

    DeepCompile with ZeRO 1 and accumulation aborts in its second step in DeepSpeed 0.19.8: the end of each backward
    pass drops the buckets in which gradients are reduced, and a pass that only accumulates makes none again. Kept
    buckets cost their memory while the optimizer steps.
    """
    if config.deepcompile and config.zero_stage == 1 and config.accumulation > 1:
        zero_1_and_2_compile.should_release_reduce_buckets = lambda *_graph: False


def put_off_muon() -> None:
    """Has the functions of DeepSpeed's Muon compiled when they are called, not when they are imported.

    With ZeRO, DeepSpeed 0.19.8 imports them at each start, to see whether the optimizer is a Muon. That would load all
    of PyTorch's compiler, which takes each rank two seconds.
    """
    if _MUON in sys.modules:
        return
    original, compiler.compile = compiler.compile, lambda: _compiled_when_called
    try:
        importlib.import_module(_MUON)
    finally:
        compiler.compile = original


def _compiled_when_called(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled = cache(lambda: torch.compile(function))

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        used = function if torch.compiler.is_compiling() else compiled()  # as part of what calls it
        return used(*args, **kwargs)

    return call


def spare_the_host() -> None:
    """Remove work of DeepSpeed that does not change the result of a step. Once is enough.

    ZeRO 3 does each of these hundreds of times a step: ranges for Nsight Systems, which stay if that runs; messages
    that are not shown; walks through the modules for parameters; searches for a GPU at each lookup of the current
    stream.
    """
    if _UNDER_NSIGHT not in os.environ:
        nvtx.enable_nvtx = False
    for module in _OF_ZERO_3:
        if hasattr(module, _PRINTS):
            setattr(module, _PRINTS, _only_wanted(getattr(module, _PRINTS)))
        if hasattr(module, _PARAMETERS):
            setattr(module, _PARAMETERS, torch.compiler.disable(_parameters))
        if hasattr(module, _DESCRIBES):
            setattr(module, _DESCRIBES, lambda _weight: "")
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


def _only_wanted(show: Any) -> Any:
    if getattr(show, "wanted", False):
        return show

    def shown(message: str, debug: bool = False, force: bool = False) -> None:
        if debug or force:
            show(message, debug, force)

    shown.wanted = True  # type: ignore[attr-defined]
    return shown


_KNOWN: Final[WeakKeyDictionary[nn.Module, dict[bool, tuple[nn.Parameter, ...]]]] = WeakKeyDictionary()


def _parameters(module: Any, recurse: bool = False) -> Iterator[nn.Parameter]:
    cache = _KNOWN.setdefault(module, {})
    if recurse not in cache:
        cache[recurse] = tuple(module.parameters(recurse=recurse))
    used: Iterable[tuple[str, nn.Parameter]] = module.ds_external_parameters()
    return chain(cache[recurse], (parameter for _, parameter in used))


_STREAMS: Final[dict[object, torch.cuda.Stream]] = {}


def _current_stream(device: int | None = None) -> torch.cuda.Stream:
    """Return the same object for each stream; PyTorch keeps the streams themselves as long as the process lasts."""
    index = torch.cuda.current_device() if device is None else device
    number = _NUMBER_OF_STREAM(index)
    if number not in _STREAMS:
        _STREAMS[number] = torch.cuda.current_stream(index)
    return _STREAMS[number]


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
