"""All patches of DeepSpeed, and the only place that applies them: they save work, and change no result of a step.

They apply to verified versions of DeepSpeed only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final, Literal

from .config import TrainerConfig
from .deepspeed_patches import keep_reduce_buckets, put_off_muon, remove_waits, spare_the_host
from .gathers import join_gathered_weights
from .reductions import join_gradients, stay_ahead

VERIFIED: Final = ("0.19.8",)
"""Versions of DeepSpeed with which the patches were tested."""

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


def state(config: TrainerConfig) -> Literal["on", "off", "unverified"]:
    """Return whether the training patches DeepSpeed; it does not patch a version that was not verified."""
    if not config.deepspeed_patches:
        return "off"
    return "on" if version("deepspeed").partition("+")[0] in VERIFIED else "unverified"


def patch_process(config: TrainerConfig) -> None:
    """Apply the patches of functions, before DeepSpeed makes its engine. Once is enough."""
    for patch in OF_THE_PROCESS.values():
        patch(config)


def patch_optimizer(optimizer: Any, config: TrainerConfig) -> None:
    """Apply the patches of an engine's optimizer."""
    for patch in OF_THE_OPTIMIZER.values():
        patch(optimizer, config)
