"""Slurm's syntax of times and GPUs, without pydantic: `campaign list` and `status` read it too."""

from __future__ import annotations

import re
from fractions import Fraction
from math import ceil
from typing import Final

MINUTES_SECONDS: Final = re.compile(r"(?P<minutes>\d+):(?P<seconds>\d+)")
"""A form that people take for hours and minutes."""
_TIME_FORMS = (
    re.compile(r"(?P<minutes>\d+)(:(?P<seconds>\d+))?"),
    re.compile(r"(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>\d+)"),
    re.compile(r"(?P<days>\d+)-(?P<hours>\d+)(:(?P<minutes>\d+)(:(?P<seconds>\d+))?)?"),
)


def slurm_minutes(text: str) -> int:
    """Return the minutes of a Slurm time, rounded up; 0 for other text."""
    match = next((candidate for form in _TIME_FORMS if (candidate := form.fullmatch(text))), None)
    parts = {unit: int(value or 0) for unit, value in match.groupdict().items()} if match else {}
    minutes = parts.get("days", 0) * 1440 + parts.get("hours", 0) * 60 + parts.get("minutes", 0)
    return minutes + ceil(parts.get("seconds", 0) / 60)


_GRES_GPUS = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?!\d+(?:[:,(=]|$))[^:,()=]+)?(?:[:=](\d+))?(?=[,(]|$)")
"""A type may begin with a digit (`1g.10gb`, a part of a GPU), but is not a number."""
_COUNTS: Final = re.compile(r"(?:^|(?<=[:=]))\d+(?=$|[,(])")


def gpus_of_node(gpus_per_node: str, gres: str | None) -> int:
    """GPUs of a node, from `gres` or else from `gpus_per_node`."""
    if gres is None:
        return int(gpus_per_node.rpartition(":")[2])
    return sum(int(count or 1) for count in _GRES_GPUS.findall(gres))


def part_of_gres(request: str, part: Fraction) -> str:
    """Return a request as of `gres` or `gpus_per_node` for a part of it, rounded up."""
    return _COUNTS.sub(lambda match: str(ceil(int(match[0]) * part)), request)


def gpus_per_rank(executor: str, gpus_per_node: str | None, gres: str | None, ranks_per_node: int | None) -> float:
    """GPUs that an attempt holds for each of its ranks, 1 if unknown; on this machine each rank counts."""
    if executor != "slurm" or gpus_per_node is None:
        return 1.0
    gpus = gpus_of_node(gpus_per_node, gres)
    return gpus / (ranks_per_node or gpus or 1)
