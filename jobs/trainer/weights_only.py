"""Loads checkpoints without running code in them: tensors, plain values, and the few classes that DeepSpeed saves.

A pickle may call anything. PyTorch has a reader that refuses to, but DeepSpeed (0.19.8) names the other reader; this
module forces the careful reader upon it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address
from torch import serialization

_FORCE: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_SAVED: Final = (DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address)
"""Classes of plain values in DeepSpeed's checkpoints."""


@contextmanager
def weights_only() -> Iterator[None]:
    """Make `torch.load` read nothing but weights, for any arguments."""
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with serialization.safe_globals([*_SAVED]):
            yield
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before
