"""How many GPUs an attempt holds; apart from the spec's sections, so that `campaign list` needs no pydantic for it."""

from __future__ import annotations

import re
from typing import Final

_GRES_GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?!\d+(?:[:,(=]|$))[^:,()=]+)?(?:[:=](\d+))?(?=[,(]|$)")
"""A type may begin with a digit (`1g.10gb`, a part of a GPU), but is not a number."""


_ITEM: Final = re.compile(r"[^,(]+(?:\([^)]*\))?")
_OF_GPUS: Final = re.compile(r"(?:gres/)?gpu(?=[:=(]|$)")


def unread_gres(gres: str) -> str | None:
    """Return the item of `gres`, or all of it, without a readable number of GPUs; None if each has one."""
    if gres == "none":
        return None
    asking = [item for item in _ITEM.findall(gres) if _OF_GPUS.match(item)]
    return next((item for item in asking if not _GRES_GPUS.search(item)), None) if asking else gres


def gpus_of_node(gpus_per_node: str, gres: str | None) -> int:
    """GPUs of a node, from `gres` or else from `gpus_per_node`."""
    if gres is None:
        return int(gpus_per_node.rpartition(":")[2])
    return sum(int(count or 1) for count in _GRES_GPUS.findall(gres))


def gpus_per_rank(executor: str, gpus_per_node: int, ranks_per_node: int | None) -> float:
    """GPUs that an attempt holds for each of its ranks; on this machine each rank counts."""
    return gpus_per_node / (ranks_per_node or gpus_per_node or 1) if executor == "slurm" else 1.0
