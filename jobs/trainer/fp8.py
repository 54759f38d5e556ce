"""Linear layers of transformer blocks in FP8, by torchao; everything else is as in bf16.

Inputs, weights and gradients are rounded to 8 bits for each matrix product, with a scale for each tensor.
"""

from __future__ import annotations

from typing import Final

from torch import nn

from .whole_blocks import blocks_of

MULTIPLE: Final = 16  # the GPU's FP8 products need sizes that are multiples of it


def use_fp8(model: nn.Module, *, emulate: bool) -> int:
    """Replace the linear layers of the model's blocks, except of odd sizes; return their number.

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
