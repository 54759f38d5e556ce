"""ZeRO 3 by whole transformer blocks, gathered at once: see benchmarks/results/zero3-leaf-h200."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deepspeed.utils import set_z3_leaf_modules, z3_leaf_module
from torch import nn

from .model import whole_shape

DEFAULT_AHEAD: Final = 50_000_000  # DeepSpeed's own ``stage3_prefetch_bucket_size``, in elements
_PREFETCH: Final = {"stage3_prefetch_bucket_size", "prefetch_bucket_size"}


def gather_whole_blocks(model: nn.Module, ds_config: Mapping[str, Any]) -> int:
    """Make DeepSpeed gather each of the model's blocks at once, unless its configuration names other modules.

    A rank then holds a whole block more than it computes with. Parameters from a disk are gathered by themselves,
    because each needs a buffer. Return the number of blocks; 0 if DeepSpeed's default is kept.
    """
    zero = ds_config.get("zero_optimization") or {}
    from_disk = (zero.get("offload_param") or {}).get("device") == "nvme"
    if zero.get("stage") != 3 or "leaf_module" in zero or from_disk:
        return 0
    kinds = {type(block) for block in blocks_of(model)}
    return len(set_z3_leaf_modules(model, list(kinds))) if kinds else 0


def gathered_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks that ZeRO 3 gathers at once."""
    return [block for block in blocks_of(model) if z3_leaf_module(block)]


def with_a_block_ahead(ds_config: Mapping[str, Any], model: nn.Module) -> Mapping[str, Any]:
    """Return the configuration with a prefetch of the next block, unless it sets the prefetch itself."""
    zero = ds_config.get("zero_optimization") or {}
    if zero.get("stage") != 3 or _PREFETCH & zero.keys():
        return ds_config
    blocks = [[whole_shape(weight) for weight in block.parameters()] for block in gathered_blocks(model)]
    ahead = max([DEFAULT_AHEAD, *(sum(shape.numel() for shape in block if len(shape) > 1) for block in blocks)])
    return {**ds_config, "zero_optimization": {**zero, "stage3_prefetch_bucket_size": ahead}}


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the model's transformer blocks in order: the modules that Transformers never divides among devices."""
    undivided = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in undivided]
