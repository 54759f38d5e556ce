"""How many GPUs Slurm's words ask for; apart from their section, so that `campaign list` needs no pydantic for it."""

from __future__ import annotations

import re

_GRES_GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?!\d+(?:[:,(=]|$))[^:,()=]+)?(?:[:=](\d+))?(?=[,(]|$)")
"""A type may begin with a digit (`1g.10gb`, a part of a GPU), but is not a number."""


def gpus_of_node(gpus_per_node: str, gres: str | None) -> int:
    """GPUs of one node, from `gres` or else from `gpus_per_node`."""
    if gres is None:
        return int(gpus_per_node.rpartition(":")[2])
    return sum(int(count or 1) for count in _GRES_GPUS.findall(gres))
