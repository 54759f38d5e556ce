"""The memory of a model's states (weights, gradients, optimizer states) on a GPU and a node, by arithmetic. Pure.

Activations and fragmentation come on top. Sizes are those of "ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models" (Rajbhandari et al., 2020, section 3.1), and of the buffers in which stages 1 and 2 reduce gradients.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from dscampaign.jobs.shared.state_layout import joins_parameters
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.slurm_section import SlurmConfig

from .parameter_count import count_parameters

Offload = Literal["none", "optimizer", "full", "nvme"]
"""States that leave the GPU: none; the optimizer's; the weights too; both, to the node's disk."""

Engine = Literal["deepspeed", "ddp", "fsdp2"]

GB: Final = 1e9
GIB: Final = 2.0**30
BUCKET: Final = 500_000_000
"""Numbers in a buffer of DeepSpeed for gradients, unless its configuration sets another size."""

_FULL: Final = 4  # bytes of a number in fp32
_HALF: Final = 2  # bytes of one in bf16 or fp16
_TWO_MOMENTS: Final = ("adam", "lamb")
_NAMED_GIB: Final = {
    "t4": 16, "a16": 16, "a10": 24, "a30": 24, "l4": 24, "v100": 32, "a40": 48, "a6000": 48, "l40": 48, "l40s": 48,
    "mi210": 64, "mi250": 64, "mi250x": 64, "a100": 80, "h100": 80, "mi300a": 128, "h200": 141, "gh200": 144,
    "b200": 180, "gb200": 186, "mi300x": 192, "mi325x": 256, "b300": 288,
}  # fmt: skip
"""Memory of GPUs by Slurm's usual names, in GiB; of a kind with several sizes the largest."""
_SAYS_GB: Final = re.compile(r"(?<![a-z\d])(\d+)gb?(?![a-z\d])")


@dataclass(frozen=True)
class States:
    """The memory of a model's states on the GPU of a rank, and offloaded to a node's memory or disk, in GB.

    The optimizer's has its own copy of the weights; in the buffers ZeRO 1 and 2 reduce gradients.
    """

    weights_gb: float
    gradients_gb: float
    optimizer_gb: float
    buffers_gb: float
    host_gb: float = 0.0
    disk_gb: float = 0.0

    @property
    def gpu_gb(self) -> float:
        """Return the memory that a rank keeps on its GPU."""
        return self.weights_gb + self.gradients_gb + self.optimizer_gb + self.buffers_gb


def model_states(
    parameters: int,
    *,
    precision: str,
    zero_stage: int,
    ranks: int,
    ranks_per_node: int | None = None,
    accumulation: int | None = None,
    offload: Offload = "none",
    engine: Engine = "deepspeed",
    moments: int = 2,
    buffer: int = BUCKET,
    joined: bool = False,
    whole_gradients: bool = False,
) -> States:
    """Return the memory of a model's states.

    In half precision the optimizer keeps fp32 weights beside its moments; so it does with ZeRO in fp32, because
    DeepSpeed gives it a copy. DDP and FSDP2 train fp32 weights in any precision.

    Args:
        parameters: Of the whole model; of a rank if ranks share layers.
        ranks: Processes with the same parameters, among which ZeRO divides states.
        accumulation: Passes of an optimizer step. Between them stage 1 keeps whole gradients; with a single pass it
            divides them as stage 2 does.
        offload: Takes effect if ZeRO can: optimizer states from stage 1, weights with stage 3.
        moments: Numbers in fp32 that the optimizer keeps for each weight: 2 for Adam, 1 for momentum.
        buffer: Numbers in all of DeepSpeed's buffers for gradients together; 0 for none.
        joined: All parameters lie in two tensors: at the end of a backward pass every rank has all gradients, and for a
            moment twice.
        whole_gradients: FSDP2 keeps whole gradients until the last pass of a step.
    """
    half = engine == "deepspeed" and precision in ("bf16", "fp8", "fp16")
    stage = {"deepspeed": zero_stage, "fsdp2": 3}.get(engine, 0)
    size = _HALF if half else _FULL
    copy = _FULL if engine == "deepspeed" and (half or stage) else 0
    weights = size * parameters / (ranks if stage == 3 else 1)
    divided = stage >= 2 or (stage == 1 and accumulation == 1)
    gradients = 2 * size * parameters if joined else size * parameters / (ranks if divided else 1)
    optimizer = (copy + _FULL * moments) * parameters / (ranks if stage else 1)
    buffers = size * buffer if stage in (1, 2) else 0
    away = 0.0
    if offload != "none" and stage:
        # Beside the optimizer's states, the gradients of its share in fp32.
        away, optimizer = optimizer + _FULL * parameters / ranks, 0.0
        gradients = 0.0 if divided else gradients
    if offload in ("full", "nvme") and stage == 3:
        away, weights = away + weights, 0.0
    if engine == "fsdp2" and whole_gradients and accumulation != 1:
        gradients = size * parameters
    away_gb = away * (ranks_per_node or ranks) / GB
    on_gpu = (weights / GB, gradients / GB, optimizer / GB, buffers / GB)
    return States(*on_gpu, disk_gb=away_gb) if offload == "nvme" else States(*on_gpu, host_gb=away_gb)


@dataclass(frozen=True)
class Sizes:
    """The ranks of a run, and the passes of an optimizer step; None if unknown."""

    ranks: int
    ranks_per_node: int
    accumulation: int | None = None


def states_of(config: RunConfig, parameters: int, sizes: Sizes) -> States:
    """Return the memory of a model's states in a run of the built-in training, with its `deepspeed` section."""
    divided = {**asdict(sizes), "ranks": max(1, sizes.ranks // config.train.tensor_parallel)}
    return model_states(_of_rank(config, parameters), **_choices(config), **divided)


def _of_rank(config: RunConfig, parameters: int) -> int:
    """Return the parameters of a rank before ZeRO divides them; a lower bound if they cannot be counted."""
    train = config.train
    if train.tensor_parallel == 1 or train.model is None:
        return parameters
    whole, part = (count_parameters(train.model, train.tokenizer, sharers) for sharers in (1, train.tensor_parallel))
    return parameters * part // whole if whole and part else parameters // train.tensor_parallel


def gpu_memory_gb(slurm: SlurmConfig) -> float | None:
    """Return the memory of a requested GPU in GB, by its type or the size in its name (`1g.10gb`); None if unknown."""
    if slurm.gpu_type is None:
        return None
    name = slurm.gpu_type.lower()
    if sizes := _SAYS_GB.findall(name):
        return int(sizes[-1]) * GIB / GB
    words = re.split(r"[^a-z\d]+", name)
    return next((_NAMED_GIB[word] * GIB / GB for word in words if word in _NAMED_GIB), None)


def _choices(config: RunConfig) -> dict[str, Any]:
    rendered = config.rendered_deepspeed()
    zero, optimizer = rendered["zero_optimization"], rendered["optimizer"]
    optimizers, weights = ((zero.get(f"offload_{name}") or {}).get("device", "none") for name in ("optimizer", "param"))
    offload = "none" if optimizers == "none" else "optimizer" if weights == "none" else "full"
    # As the spec has it: what is rendered for stage 3, which has no such buffer, says nothing of the other stages.
    section = config.deepspeed.get("zero_optimization") or {}
    buffers = (1 + bool(zero.get("overlap_comm"))) * bool(section.get("contiguous_gradients", True))
    kind = str(optimizer.get("type", "")).lower()
    return {
        "precision": config.train.precision,
        "engine": config.train.engine,
        "zero_stage": zero["stage"],
        "joined": joins_parameters(config.train.model_dump()) == "model",
        "whole_gradients": config.train.fsdp2_reduce == "last",
        "offload": "nvme" if "nvme" in (optimizers, weights) else offload,
        "moments": 2 if any(name in kind for name in _TWO_MOMENTS) else 1,
        "buffer": int(zero.get("reduce_bucket_size", BUCKET)) * buffers,
    }


_MB = 2.0**20  # Slurm's
_DRAWN = 4  # bytes of a weight in fp32


@dataclass(frozen=True)
class Shortage:
    """The reason that a run cannot fit, and the remedy."""

    message: str
    hint: str


@dataclass(frozen=True)
class ModelNeeds:
    """Whether a run names a model, and what is known of it.

    The states are None for a command, the shortage if the model can fit or the machine is unknown.
    """

    model: bool = False
    parameters: int | None = None
    states: States | None = None
    shortage: Shortage | None = None


def needs_of(config: RunConfig, sizes: Sizes, usable_gb: float | None = None) -> ModelNeeds:
    """Return the needs of a run's model. Usable memory measured by similar runs counts before the GPU's type."""
    train = config.train
    parameters = None if train.model is None else count_parameters(train.model, train.tokenizer)
    if parameters is None or config.command is not None:
        return ModelNeeds(train.model is not None, parameters)
    states = states_of(config, parameters, sizes)
    room_gb = usable_gb or _gpu_room_gb(config)
    shortage = _host_shortage(config, states, start_gb=_start_gb(config, parameters) * sizes.ranks_per_node)
    if room_gb is not None and states.gpu_gb > room_gb:
        message = f"the model's states alone take {states.gpu_gb:,.1f} GB of a GPU that has {room_gb:,.1f} GB"
        shortage = Shortage(message, "raise train.zero_stage, offload, use more GPUs, or a smaller model")
    return ModelNeeds(True, parameters, states, shortage)


def host_need_gb(config: RunConfig, needs: ModelNeeds, ranks_per_node: int) -> float:
    """The most of a node's memory that a run's model is known to take at any time, in GB of 10^9 bytes, or 0."""
    if needs.states is None or needs.parameters is None:
        return 0.0
    return max(needs.states.host_gb, _start_gb(config, needs.parameters) * ranks_per_node)


def _gpu_room_gb(config: RunConfig) -> float | None:
    """Return the memory of a rank's GPU; None if unknown, and on CPUs."""
    if config.executor == "local":
        limit_mb = config.local.limit_mb(gpus=True)
        return None if limit_mb is None else limit_mb * _MB / GB
    return gpu_memory_gb(config.slurm) if config.slurm.gpus else None


def _start_gb(config: RunConfig, parameters: int) -> float:
    return 0.0 if config.train.zero_stage == 3 else _DRAWN * parameters / GB


def _host_shortage(config: RunConfig, states: States, start_gb: float) -> Shortage | None:
    room_mb = config.slurm.mem_mb if config.executor == "slurm" else None
    if not room_mb:
        return None  # all of the node, or what the cluster gives
    lanes = config.slurm.lanes
    room_gb = room_mb / lanes * _MB / GB
    limit = f"{'its part of ' if lanes > 1 else ''}slurm.mem is {room_gb:,.0f} GB"
    if states.host_gb > room_gb:
        message = f"the model's offloaded states take {states.host_gb:,.0f} GB of each node, {limit}"
        return Shortage(message, "raise slurm.mem, or use more nodes")
    if start_gb > room_gb:
        message = f"at the start every rank has the whole model, which takes {start_gb:,.0f} GB of each node, {limit}"
        return Shortage(message, "raise slurm.mem, or start fewer ranks on a node")
    return None
