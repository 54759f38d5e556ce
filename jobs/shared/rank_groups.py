"""Consecutive ranks that work on the same samples: they share each sample's tokens, or each layer's matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def ranks_per_sample(train: Mapping[str, Any]) -> int:
    """Return the number of ranks in such a group; 1 if each has samples of its own.

    Args:
        train: fields of the spec's `train`; missing fields have the spec's defaults.
    """
    return int(train.get("sequence_parallel") or 1) * int(train.get("tensor_parallel") or 1)
