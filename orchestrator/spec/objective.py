"""The objective of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final


class Objective(StrEnum):
    """The figure by which a configuration is chosen, among all that reach the baseline's loss."""

    SPEED = "speed"
    LOSS = "loss"
    MEMORY = "memory"
    ENERGY = "energy"
    TIME_TO_LOSS = "time-to-loss"


LOWER: Final = frozenset(
    """held_out first_loss final_loss best_loss step_s step_mean_s step_std_s step_p99_s energy_j j_per_token
    mem_allocated_gb mem_reserved_gb mem_end_gb mem_peak_reserved_gb mem_device_gb mem_share mem_host_gb
    gpu_power_capped""".split()  # noqa: SIM905
)
HIGHER: Final = frozenset("loss_reduction tokens_per_s steps_per_s samples_per_s mfu".split())  # noqa: SIM905
"""The report's figures, by their better direction."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("held_out", "final_loss"),
    "speed": ("tokens_per_s", "steps_per_s"),
    "memory": ("mem_reserved_gb", "mem_host_gb"),
    "energy": ("j_per_token",),
}
"""Figures by the word for an objective; the first that was measured counts."""

_BY_FIGURE: Final = {figure: Objective(word) for word, figures in WORDS.items() for figure in figures}


def objective_of(figures: Sequence[str]) -> Objective | None:
    """Return the objective of a comparison that a search's figure stands for; None for several figures or others."""
    word = figures[0] if len(figures) == 1 else ""
    return Objective(word) if word in WORDS else _BY_FIGURE.get(word)


def value_of(name: str, figures: Mapping[str, float | None]) -> float | None:
    """Return the value of a figure, or of the first measured figure of a word; None if unknown or not finite."""
    values = (figures.get(each) for each in WORDS.get(name, (name,)))
    value = next((each for each in values if each is not None), None)
    return value if value is not None and math.isfinite(value) else None
