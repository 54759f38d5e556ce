"""The objective of a comparison."""

from __future__ import annotations

from enum import StrEnum


class Objective(StrEnum):
    """The figure by which a configuration is chosen, among all that reach the baseline's loss."""

    SPEED = "speed"
    LOSS = "loss"
    MEMORY = "memory"
    ENERGY = "energy"
    TIME_TO_LOSS = "time-to-loss"
