"""What may be changed of a run so that it fits into memory, beside its micro-batch. Pure.

A rung that is taken is kept with the attempt as text (`expandable_segments zero_stage=2`), and every output marks it:
all but the first change what is being measured, so they need the spec's leave (`retry.allow`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from ..spec import strategies
from ..spec.model import ConfigChange, RunConfig

EXPANDABLE_SEGMENTS: Final = "expandable_segments"
"""Lets PyTorch's allocator join free pieces: it changes no result, and cures an out-of-memory by fragmentation."""

ACTIVATION_CHECKPOINTING: Final = "activation_checkpointing"
OFFLOAD_OPTIMIZER: Final = "offload_optimizer"
ZERO_STAGE: Final = "zero_stage"

_ALLOCATOR: Final = {
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",  # its name before torch 2.9
}


def parse(changes: str) -> tuple[str, ...]:
    """The rungs that an attempt's `changes` names, in the order in which they were taken."""
    return tuple(changes.split())


def text(rungs: Collection[str]) -> str:
    """The rungs as an attempt keeps them."""
    return " ".join(rungs)


def next_change(config: RunConfig, allowed: Collection[ConfigChange], taken: Collection[str]) -> str | None:
    """What to change next where the micro-batch cannot be made smaller; None where nothing is left that is allowed.

    Args:
        config: the run as its spec asks for it.
        allowed: what its spec allows to be changed.
        taken: what was changed already.
    """
    if config.command is not None:
        return None  # only the built-in training is known to follow
    now = changed(config, taken)
    stage = now.train.zero_stage
    candidates = {
        ACTIVATION_CHECKPOINTING: None if now.train.activation_checkpointing else ACTIVATION_CHECKPOINTING,
        OFFLOAD_OPTIMIZER: OFFLOAD_OPTIMIZER if stage and not _offloads(now) else None,
        ZERO_STAGE: f"{ZERO_STAGE}={stage + 1}" if stage < 3 else None,
    }
    return next((rung for name, rung in candidates.items() if name in allowed and rung and _works(now, rung)), None)


def changed(config: RunConfig, rungs: Collection[str]) -> RunConfig:
    """The run's configuration with these rungs taken."""
    for rung in rungs:
        name, _, value = rung.partition("=")
        match name:
            case "activation_checkpointing":
                config = _with_train(config, activation_checkpointing=True)
            case "zero_stage":
                config = _with_train(config, zero_stage=int(value))
            case "offload_optimizer":
                config = _with_train(config, offload="optimizer")
            case "expandable_segments":
                config = config.model_copy(update={"env": {**_ALLOCATOR, **config.env}})
            case _:
                raise ValueError(f"{rung}: no such change")
    return config


def _works(config: RunConfig, rung: str) -> bool:
    """Whether a run with this rung is one that a spec may ask for."""
    gpus = config.slurm.gpus
    return set(strategies.check(changed(config, [rung]), gpus)) <= set(strategies.check(config, gpus))


def _with_train(config: RunConfig, **values: Any) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update=values)})


def _offloads(config: RunConfig) -> bool:
    return config.train.offload != "none" or bool(
        config.deepspeed.get("zero_optimization", {}).get("offload_optimizer")
    )
