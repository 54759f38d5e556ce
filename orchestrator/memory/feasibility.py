"""A run's model in the plan: its size, its states, and whether they can fit at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dscampaign.orchestrator.spec.model import RunConfig

from .zero_memory import GB, Sizes, States, alternatives, gpu_memory_gb, parameters_of, states_of

_MB = 2.0**20  # Slurm's
_LEAST_GB = 0.05
_DRAWN = 4  # bytes of a weight in fp32


@dataclass(frozen=True)
class Shortage:
    """The reason that a run cannot fit, and a configuration that would."""

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
    parameters = parameters_of(config)
    if parameters is None or config.command is not None:
        return ModelNeeds(config.train.model is not None, parameters)
    states = states_of(config, parameters, sizes)
    room_gb = usable_gb or _gpu_room_gb(config)
    shortage = _host_shortage(config, states, start_gb=_start_gb(config, parameters) * sizes.ranks_per_node)
    if room_gb is not None and states.gpu_gb > room_gb:
        shortage = _gpu_shortage(states, alternatives(config, parameters, sizes), room_gb)
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


def _gpu_shortage(states: States, ways: Iterable[tuple[str, States]], room_gb: float) -> Shortage:
    message = f"the model's states alone take {states.gpu_gb:,.1f} GB of a GPU that has {room_gb:,.1f} GB"
    for words, other in ways:
        if other.gpu_gb <= room_gb:
            also = f" and {other.host_gb:,.0f} GB of each node" if other.host_gb else ""
            size = f"{other.gpu_gb:,.1f} GB" if other.gpu_gb >= _LEAST_GB else "almost nothing of the GPU"
            return Shortage(message, f"{words} takes {size}{also}")
    return Shortage(message, "no ZeRO stage and no offload makes them fit: use more GPUs, or a smaller model")


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
