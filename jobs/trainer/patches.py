"""All patches of DeepSpeed, and the only place that applies them: they save work, and change no result of a step.

Each leaves alone a version of DeepSpeed that solves its problem or works in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .config import TrainerConfig
from .deepspeed_patches import keep_reduce_buckets, put_off_muon, remove_waits, spare_the_host
from .gathers import join_gathered_weights
from .reductions import join_gradients, stay_ahead

OF_THE_PROCESS: Final[Mapping[str, Callable[[TrainerConfig], None]]] = {
    "reduce-buckets": keep_reduce_buckets,
    "muon": lambda _: put_off_muon(),
    "host-work": lambda _: spare_the_host(),
    "gathers": lambda _: join_gathered_weights(),
    "reductions": lambda config: None if config.deepcompile else join_gradients(),
}
"""Patches of DeepSpeed's functions; DeepCompile reduces in operators of its own."""

OF_THE_OPTIMIZER: Final[Mapping[str, Callable[[Any, TrainerConfig], None]]] = {
    "clipping": lambda optimizer, _: remove_waits(optimizer),
    "stay-ahead": lambda optimizer, config: None if config.deepcompile else stay_ahead(optimizer),
}


def patch_process(config: TrainerConfig) -> None:
    """Apply the patches of functions, before DeepSpeed makes its engine. Once is enough."""
    for patch in OF_THE_PROCESS.values():
        patch(config)


def patch_optimizer(optimizer: Any, config: TrainerConfig) -> None:
    """Apply the patches of an engine's optimizer."""
    for patch in OF_THE_OPTIMIZER.values():
        patch(optimizer, config)
