"""ZeRO 1 and 2 in bf16 without the moments in each step at which the host waits for the device (DeepSpeed 0.19.8).

While it clips, DeepSpeed asks the device four times a step whether a norm is finite: the device then idles until the
host has queued something again, which costs a fifth of the speed on a small batch. In bf16 the answers decide nothing
that the device could not decide itself: there is no loss scale, and no step is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.runtime.zero import stage_1_and_2
from torch import Tensor

_NOT_FINITE = "mask_nan_or_inf_with_val_inplace"


def remove_waits(optimizer: Any) -> None:
    """Makes this optimizer clip without waiting; leaves any other than ZeRO 1 and 2 in bf16 on a GPU as it is."""
    if not isinstance(optimizer, stage_1_and_2.DeepSpeedZeroOptimizer):
        return
    if optimizer.dtype != torch.bfloat16 or optimizer.check_grad_overflow or optimizer.cpu_offload:
        return
    if not hasattr(stage_1_and_2, _NOT_FINITE) or not hasattr(optimizer, "unscale_and_clip_grads"):
        return  # another version, which does it in its own way
    setattr(stage_1_and_2, _NOT_FINITE, _mask_not_finite)
    limit = float(optimizer.clip_grad)

    def clip(gradients: Sequence[Tensor], norm: Tensor) -> None:
        if limit > 0.0:
            factor = limit / torch.clamp(norm + 1e-6, min=limit)
            factor = torch.where(torch.isfinite(norm) & (norm >= 0), factor, 0.0)  # as for an infinite norm
            torch._foreach_mul_(list(gradients), factor)

    optimizer.unscale_and_clip_grads = clip


def _mask_not_finite(norm: Tensor, device: object = None, val: float = -1.0) -> None:  # noqa: ARG001 - as DeepSpeed's
    """What DeepSpeed marks an invalid norm with; its own sends the mark from the host each time."""
    norm.masked_fill_(~torch.isfinite(norm), val)
