"""What more ranks bring: conditions that differ in nothing else. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .conditions import Condition

_BATCH: Final = ("global_batch", "micro_batch", "seed")
"""Fields that may go with the number of ranks; strong scaling keeps the first, weak scaling the second."""


@dataclass(frozen=True)
class Scaled:
    """A condition beside the one with the fewest ranks.

    Attributes:
        reference: that one; itself for the first.
        efficiency: speed of a rank as a share of the reference's.
    """

    condition: Condition
    reference: Condition
    ranks: int
    tokens_per_s: float
    efficiency: float


def scaling_of(conditions: Sequence[Condition]) -> list[Scaled]:
    """Every set of conditions that differ only in their ranks, from the fewest on."""
    alike: dict[str, list[tuple[int, float, Condition]]] = {}
    for condition in conditions:
        tokens = condition.median(lambda run: run.timing.tokens_per_s if run.timing else None)
        if tokens:
            alike.setdefault(_kind(condition), []).append((condition.runs[0].world_size, tokens.value, condition))
    found = []
    for group in alike.values():
        ordered = sorted(group, key=lambda one: one[0])
        fewest, speed, reference = ordered[0]
        if len({ranks for ranks, _, _ in ordered}) > 1:
            found += [Scaled(one, reference, n, value, value / n / (speed / fewest)) for n, value, one in ordered]
    return found


def _kind(condition: Condition) -> str:
    """Everything of the configuration but the machine and what goes with it."""
    config = condition.runs[0].config
    train = {name: value for name, value in (config.get("train") or {}).items() if name not in _BATCH}
    return json.dumps([train, config.get("command"), config.get("deepspeed")], sort_keys=True, default=str)
