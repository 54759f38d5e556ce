"""Process group and engine: DeepSpeed's, or PyTorch's own for comparison."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final, Literal, TypeAlias

import deepspeed
import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.op_builder.dc import DeepCompileBuilder
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.utils import set_z3_leaf_modules, z3_leaf_module
from torch import Tensor, nn

from dscampaign.jobs.shared.state_layout import joins_parameters

from . import swap_space
from .config import Job, TrainerConfig
from .flat_parameters import FlatModel, join_blocks
from .model import NextTokenLoss, blocks_of, parameter_groups, whole_shape
from .rank_groups import mark_gradients, norm_of_parts
from .torch_engine import DdpEngine, FsdpEngine

LET_GO_S: Final = 0.1
MULTIPLE: Final = 16  # the GPU's FP8 products need sizes that are multiples of it
VERIFIED: Final = ("0.19.8",)  # versions of DeepSpeed with which its patches were tested
DEFAULT_AHEAD: Final = 50_000_000  # DeepSpeed's own ``stage3_prefetch_bucket_size``, in elements
_PREFETCH: Final = {"stage3_prefetch_bucket_size", "prefetch_bucket_size"}

Engine: TypeAlias = DeepSpeedEngine | DdpEngine | FsdpEngine
"""An engine. DeepSpeed's has no types: the common methods are checked for the others."""


def start_process_group(job: Job) -> torch.device:
    """Join the ranks and return this rank's device."""
    # DeepSpeed would compile a shared-memory reduction for CPU ranks: 45 s on a first start. The usual back ends do
    # without.
    deepspeed.ops.__compatible_ops__ = {}
    # PyTorch 2.13 warns in each step, each time that DeepSpeed 0.19.8 gathers or reduces.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
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
    on_disk = [get_accelerator().create_op_builder("AsyncIOBuilder")] if swap_space.in_use(ds_config) else []
    for builder in [*on_disk, *([DeepCompileBuilder()] if config.deepcompile else [])]:
        if not builder.is_compatible(verbose=False):
            needs = "train.offload nvme needs libaio and its headers, train.deepcompile CUDA's compiler"
            raise ValueError(f"{needs}: {builder.name} cannot be built here (Debian: libaio-dev, cuda-toolkit)")
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


def patches(config: TrainerConfig) -> Literal["on", "off", "crash fix", "unverified"]:
    """Return whether the training patches DeepSpeed; it does not patch a version that was not verified.

    "crash fix": DeepSpeed as installed, but for ``keep_reduce_buckets``, without which it aborts.
    """
    verified = version("deepspeed").partition("+")[0] in VERIFIED
    if config.deepspeed_patches:
        return "on" if verified else "unverified"
    return "crash fix" if verified and _drops_buckets(config) else "off"


def _drops_buckets(config: TrainerConfig) -> bool:
    return config.deepcompile and config.zero_stage == 1 and config.accumulation > 1


def create_engine(model: NextTokenLoss, config: TrainerConfig, ds_config: Mapping[str, Any]) -> Engine:
    """Hand the model to DeepSpeed, by its configuration, or to an engine of PyTorch alone."""
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    device = torch.device(get_accelerator().current_device_name())
    if config.precision == "fp8":
        use_fp8(model.model, emulate=device.type == "cpu")
    if config.engine == "ddp":
        engine: Engine = DdpEngine(model, config, device)
    elif config.engine == "fsdp2":
        engine = FsdpEngine(model, config, device)
    else:
        engine = _deepspeed_engine(model, config, ds_config, device)
    if config.compile or config.deepcompile:
        _compile(engine, config)
    return engine


def _deepspeed_engine(
    model: NextTokenLoss, config: TrainerConfig, ds_config: Mapping[str, Any], device: torch.device
) -> DeepSpeedEngine:
    state, joined = patches(config), joins_parameters(asdict(config))
    patched = state == "on"
    if patched and joined == "blocks":
        join_blocks(model, blocks_of(model))
    elif patched and not config.deepcompile:
        gather_whole_blocks(model, ds_config)
    trained = FlatModel(model, device) if joined == "model" else model
    if state in {"on", "crash fix"}:
        from . import deepspeed_patches

        if _drops_buckets(config):
            deepspeed_patches.keep_reduce_buckets()
        if patched:
            deepspeed_patches.patch_process(config, ds_config)
    rendered = deepcopy(dict(with_a_block_ahead(ds_config, trained)))
    engine, *_ = deepspeed.initialize(
        model=trained, model_parameters=parameter_groups(trained), config=rendered, dist_init_required=False
    )
    if isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        _forget_trial_step(engine.optimizer)
    if patched:
        deepspeed_patches.patch_optimizer(engine.optimizer, config)
    return engine


def _compile(engine: Any, config: TrainerConfig) -> None:
    """Compile the parts between the hooks of ZeRO 3, and else the whole model."""
    blocks = gathered_blocks(engine.module) if config.zero_stage == 3 and not config.deepcompile else []
    if blocks:
        from .deepspeed_patches import compile_plain_linear

        compile_plain_linear()
        engine.module.compile_parts(blocks)
    else:
        engine.compile()


def gather_whole_blocks(model: nn.Module, ds_config: Mapping[str, Any]) -> int:
    """Make ZeRO 3 gather each of the model's blocks at once, unless its configuration names other modules.

    See benchmarks/results/zero3-leaf-h200. A rank then holds a whole block more than it computes with. Parameters from
    a disk are gathered by themselves, because each needs a buffer. Return the number of blocks.
    """
    zero = ds_config.get("zero_optimization") or {}
    from_disk = (zero.get("offload_param") or {}).get("device") == "nvme"
    if zero.get("stage") != 3 or "leaf_module" in zero or from_disk:
        return 0
    kinds = {type(block) for block in blocks_of(model)}
    return len(set_z3_leaf_modules(model, list(kinds))) if kinds else 0


def gathered_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks that ZeRO 3 gathers at once."""
    return [block for block in model.modules() if isinstance(block, FlatModel) or z3_leaf_module(block)]


def with_a_block_ahead(ds_config: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    """Return the configuration with a prefetch of the next block, unless it sets the prefetch itself."""
    zero = ds_config.get("zero_optimization") or {}
    if zero.get("stage") != 3 or _PREFETCH & zero.keys():
        return ds_config
    blocks = [sum(whole_shape(weight).numel() for weight in block.parameters()) for block in gathered_blocks(model)]
    ahead = max([DEFAULT_AHEAD, *blocks])
    return {**ds_config, "zero_optimization": {**zero, "stage3_prefetch_bucket_size": ahead}}


def set_learning_rate(engine: Engine, rate: float) -> None:
    """Set the rate of the coming optimizer step."""
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


def advance(engine: Engine, loss: Tensor) -> Tensor | float | None:
    """Run the backward pass of a micro-batch and, after the last of a step, update the weights.

    Return the 2-norm of the step's gradients before clipping; None before the last micro-batch, or if it is not
    computed.
    """
    scale, norm = 1.0, None
    if isinstance(engine, DdpEngine | FsdpEngine):
        engine.backward(loss)
    elif isinstance(engine.optimizer, FP16_UnfusedOptimizer):
        # Half precision without ZeRO. DeepSpeed takes this scale out of the gradients, but (as of 0.19.8) never puts it
        # into the loss: small gradients would underflow, and all be 65,536 times too small beside Adam's epsilon.
        scale = float(engine.optimizer.loss_scale)
        engine.backward(loss * scale)
        if engine.autotp_size() > 1:
            mark_gradients(engine.module.parameters())
    else:
        engine.backward(loss)
        norm = _plain_norm(engine)
    engine.step()
    if norm is None:
        norm = engine.get_global_grad_norm()
    return None if norm is None else norm / scale


def loss_scaling(engine: Engine) -> dict[str, float]:
    """The loss scale of fp16, and how many steps it has cost so far."""
    scale = engine.loss_scale if isinstance(engine, DdpEngine | FsdpEngine) else engine.optimizer.loss_scale
    return {"loss_scale": float(scale), "skipped_steps": float(engine.skipped_steps)}


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


def _plain_norm(engine: DeepSpeedEngine) -> Tensor | None:
    """Return the norm in plain fp32 without ZeRO, which DeepSpeed clips by but does not report."""
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
