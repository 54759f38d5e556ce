"""Process group and engine: DeepSpeed's, or PyTorch's own for comparison."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from typing import Any, Final, TypeAlias

import deepspeed
import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.dc import DeepCompileBuilder
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from torch import Tensor, nn

from dscampaign.jobs.shared.state_layout import joins_parameters

from . import patches, swap_space
from .config import Job, TrainerConfig
from .flat_parameters import FlatModel
from .fsdp_engine import FsdpEngine
from .model import NextTokenLoss, parameter_groups
from .tensor_parallel import mark_gradients, norm_of_parts
from .torch_engine import DdpEngine, TorchEngine
from .whole_blocks import blocks_of, gather_whole_blocks, gathered_blocks, with_a_block_ahead

LET_GO_S: Final = 0.1
MULTIPLE: Final = 16  # the GPU's FP8 products need sizes that are multiples of it
_REPLAYED: Final = {"options": {"triton.cudagraphs": True}}


Engine: TypeAlias = DeepSpeedEngine | DdpEngine | FsdpEngine
"""An engine. DeepSpeed's has no types: the common methods are checked for the others."""


def start_process_group(job: Job) -> torch.device:
    """Join the ranks and return this rank's device."""
    # DeepSpeed would compile a shared-memory reduction for CPU ranks: 45 s on a first start. The usual back ends do
    # without.
    deepspeed.ops.__compatible_ops__ = {}
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // job.local_world))
    accelerator.set_device(job.local_rank)
    if job.gpu_mem_bytes and torch.cuda.is_available():
        total = torch.cuda.get_device_properties(job.local_rank).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, job.gpu_mem_bytes / total), job.local_rank)
    deepspeed.init_distributed(verbose=False)
    return torch.device(accelerator.current_device_name())


def build_operators(config: TrainerConfig, ds_config: Mapping[str, Any]) -> None:
    """Build the compiled operators that the configurations need, or wait for them. Raises ValueError."""
    if swap_space.in_use(ds_config):
        _build(get_accelerator().create_op_builder("AsyncIOBuilder"), "train.offload nvme needs libaio and its headers")
    if config.deepcompile:
        _build(DeepCompileBuilder(), "train.deepcompile needs CUDA's compiler")


def _build(builder: Any, needs: str) -> None:
    if not builder.is_compatible(verbose=False):
        raise ValueError(f"{needs}, which this node does not have (Debian: libaio-dev, cuda-toolkit)")
    builder.load(verbose=False)


def from_first_rank(names: list[str]) -> list[str]:
    """Return the first rank's value on every rank."""
    box = [names]
    dist.broadcast_object_list(box)
    return box[0]


def leave_process_group() -> None:
    """End this rank's communication, as its last action.

    On CPUs a thread of gloo still frees the last operation's tensors, for which it needs the interpreter (PyTorch
    2.13).
    """
    dist.destroy_process_group()
    time.sleep(LET_GO_S)


def create_engine(model: NextTokenLoss, config: TrainerConfig, ds_config: Mapping[str, Any]) -> Engine:
    """Hand the model to DeepSpeed, by its configuration, or to an engine of PyTorch alone."""
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    device = torch.device(get_accelerator().current_device_name())
    if config.precision == "fp8":
        use_fp8(model.model, emulate=device.type == "cpu")
    if config.engine == "ddp":
        engine: Engine = DdpEngine(model, parameter_groups(model), config, device)
    elif config.engine == "fsdp2":
        engine = FsdpEngine(model, config, device)
    else:
        patched = patches.state(config) == "on"
        if patched and not config.deepcompile:
            gather_whole_blocks(model, ds_config)
        joined = joins_parameters(asdict(config))
        trained = FlatModel(model, device, copy_gradients=config.cuda_graphs) if joined else model
        if patched:
            patches.patch_process(config)
        engine = _deepspeed_engine(trained, ds_config)
        if patched:
            patches.patch_optimizer(engine.optimizer, config)
    if config.compile or config.deepcompile:
        _compile(engine, config)
    return engine


def _compile(engine: Any, config: TrainerConfig) -> None:
    """Compile the parts between the hooks of ZeRO 3, and else the whole model.

    A search tries many sizes a few times each, too few to record a graph.
    """
    blocks = gathered_blocks(engine.module) if config.zero_stage == 3 and not config.deepcompile else []
    if blocks:
        patches.patch_linear()
        engine.module.compile_parts(blocks)
    elif config.cuda_graphs and config.search is None:
        engine.compile(compile_kwargs=_REPLAYED)
    else:
        engine.compile()


def set_learning_rate(engine: Engine, rate: float) -> None:
    """Set the rate of the coming optimizer step."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


def advance(engine: Engine, loss: Tensor) -> Tensor | float | None:
    """Run the backward pass of a micro-batch and, after the last of a step, update the weights.

    Return the 2-norm of the step's gradients before clipping; None before the last micro-batch, or if it is not
    computed.
    """
    scale = _loss_scale_left_out(engine)
    engine.backward(loss * scale)
    norm = _plain_norm(engine)
    _mark_parts(engine)
    engine.step()
    if norm is None:
        norm = engine.get_global_grad_norm()
    return None if norm is None else norm / scale


def loss_scaling(engine: Engine) -> dict[str, float]:
    """The loss scale of fp16, and how many steps it has cost so far."""
    scale = engine.loss_scale if isinstance(engine, TorchEngine) else engine.optimizer.loss_scale
    return {"loss_scale": float(scale), "skipped_steps": float(engine.skipped_steps)}


def _deepspeed_engine(model: NextTokenLoss | FlatModel, ds_config: Mapping[str, Any]) -> DeepSpeedEngine:
    rendered = deepcopy(dict(with_a_block_ahead(ds_config, model)))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=parameter_groups(model), config=rendered, dist_init_required=False
    )
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        _forget_trial_step(engine.optimizer)
    return engine


def _forget_trial_step(optimizer: FP16_UnfusedOptimizer) -> None:
    """Undo a step that DeepSpeed makes at the start of half precision without ZeRO.

    It has zero gradients, to allocate Adam's state. But it counts for Adam's bias correction, which makes the first
    real updates a quarter too small, and it decays the fp32 weights. The other ZeRO stages do not make this step, so
    a comparison of stages would show a difference that does not exist.
    """
    optimizer.optimizer.state.clear()
    for half_group, full_group in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
        for half, full in zip(half_group, full_group, strict=True):
            full.data.copy_(half.data)


def _loss_scale_left_out(engine: Engine) -> float:
    """The scale that DeepSpeed takes out of fp16 gradients without ZeRO, but (as of 0.19.8) never puts into the loss.

    Left so, small gradients underflow and all are 65,536 times too small beside Adam's epsilon.
    """
    return float(engine.optimizer.loss_scale) if isinstance(engine.optimizer, FP16_UnfusedOptimizer) else 1.0


def _mark_parts(engine: Any) -> None:
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer) and engine.autotp_size() > 1:
        mark_gradients(engine.module.parameters())


def _plain_norm(engine: Any) -> Tensor | None:
    """Return the norm in plain fp32 without ZeRO, which DeepSpeed clips by but does not report."""
    if isinstance(engine, TorchEngine):
        return None
    if engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled():
        return None
    if not engine.is_gradient_accumulation_boundary():
        return None
    if engine.autotp_size() > 1:
        return norm_of_parts(engine.module.parameters())
    return torch.nn.utils.get_total_norm(p.grad for p in engine.module.parameters() if p.grad is not None)


def use_fp8(model: nn.Module, *, emulate: bool) -> int:
    """Replace the linear layers of the model's blocks by torchao's, except of odd sizes; return their number.

    `emulate`: round to FP8, and multiply in a higher precision. Raises ValueError: no torchao, or no layer fits.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as exc:
        raise ValueError(f"train.precision fp8 needs the package torchao: {exc}") from exc
    fits = {
        id(layer)
        for block in blocks_of(model)
        for layer in block.modules()
        if type(layer) is nn.Linear and layer.in_features % MULTIPLE == layer.out_features % MULTIPLE == 0
    }
    if not fits:
        raise ValueError(
            f"train.precision: fp8 is for nn.Linear layers whose sizes are multiples of {MULTIPLE}, and the blocks of "
            f"{type(model).__name__} have none; use bf16"
        )
    config = Float8LinearConfig(emulate=emulate)
    convert_to_float8_training(model, config=config, module_filter_fn=lambda layer, _: id(layer) in fits)
    return len(fits)
