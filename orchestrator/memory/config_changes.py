"""Changes of a run's configuration that save memory, besides its micro-batch. Pure.

The attempt keeps its changes as text (`expandable_segments zero_stage=2`), and every output marks them: all but the
first change the measurements, so the spec has to allow them (`retry.allow`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from dscampaign.jobs.shared import allocator
from dscampaign.orchestrator.errors import Finding
from dscampaign.orchestrator.spec.model import RunConfig
from dscampaign.orchestrator.spec.sections import ConfigChange
from dscampaign.orchestrator.spec.validate import conflicts

EXPANDABLE_SEGMENTS: Final = "expandable_segments"
"""Lets PyTorch's allocator join free fragments; changes no results."""

ACTIVATION_CHECKPOINTING: Final = "activation_checkpointing"
OFFLOAD_OPTIMIZER: Final = "offload_optimizer"
ZERO_STAGE: Final = "zero_stage"


def next_change(config: RunConfig, allowed: Collection[ConfigChange], previous: Collection[str]) -> str | None:
    """Return the next allowed change if the micro-batch cannot be reduced; None if none is left."""
    if config.command is not None:
        return None  # only the built-in training is known to apply it
    now = changed(config, previous)
    stage = now.train.zero_stage
    offloads = now.train.offload != "none" or now.deepspeed.get("zero_optimization", {}).get("offload_optimizer")
    candidates = {
        ACTIVATION_CHECKPOINTING: None if now.train.activation_checkpointing else ACTIVATION_CHECKPOINTING,
        OFFLOAD_OPTIMIZER: OFFLOAD_OPTIMIZER if stage and not offloads else None,
        ZERO_STAGE: f"{ZERO_STAGE}={stage + 1}" if stage < 3 else None,
    }
    possible = (change for name, change in candidates.items() if change and name in allowed)
    known = set(_conflicts(now))  # a spec may not ask for a run with others
    return next((change for change in possible if set(_conflicts(changed(now, [change]))) <= known), None)


def changed(config: RunConfig, changes: Collection[str]) -> RunConfig:
    """The run's configuration with these changes made."""
    for change in changes:
        name, _, value = change.partition("=")
        match name:
            case "activation_checkpointing":
                config = _with_train(config, activation_checkpointing=True)
            case "zero_stage":
                config = _with_train(config, zero_stage=int(value))
            case "offload_optimizer":
                config = _with_train(config, offload="optimizer")
            case "expandable_segments":
                config = config.model_copy(update={"env": {**allocator.EXPANDABLE, **config.env}})
            case _:
                raise ValueError(f"{change}: no such change")
    return config


def _conflicts(config: RunConfig) -> list[Finding]:
    return list(conflicts(config, config.world_size(), config.slurm.gpus))


def _with_train(config: RunConfig, **values: Any) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update=values)})
