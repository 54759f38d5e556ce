"""All patches of DeepSpeed, and the only place that applies them: they save work, and change no result of a step.

They apply to verified versions of DeepSpeed only. Another may lack what their modules import, so these are loaded last.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final, Literal

from .config import TrainerConfig

VERIFIED: Final = ("0.19.8",)  # versions of DeepSpeed with which the patches were tested


def state(config: TrainerConfig) -> Literal["on", "off", "unverified"]:
    """Return whether the training patches DeepSpeed; it does not patch a version that was not verified."""
    if not config.deepspeed_patches:
        return "off"
    return "on" if version("deepspeed").partition("+")[0] in VERIFIED else "unverified"


def patch_process(config: TrainerConfig) -> None:
    """Apply the patches of functions, before DeepSpeed makes its engine. Once is enough."""
    from . import deepspeed_patches, zero3_patches

    deepspeed_patches.keep_reduce_buckets(config)
    deepspeed_patches.put_off_muon()
    deepspeed_patches.spare_the_host()
    zero3_patches.join_gathered_weights()
    if not config.deepcompile:  # it reduces in operators of its own
        zero3_patches.join_gradients()


def patch_optimizer(optimizer: Any, config: TrainerConfig) -> None:
    """Apply the patches of an engine's optimizer."""
    from . import deepspeed_patches, zero3_patches

    deepspeed_patches.remove_waits(optimizer)
    if not config.deepcompile:
        zero3_patches.stay_ahead(optimizer)


def patch_linear() -> None:
    """Give the compiler PyTorch's own linear layer under ZeRO 3."""
    from .deepspeed_patches import compile_plain_linear

    compile_plain_linear()
