"""The first steps of an attempt, which count in no figure of speed: they compile, allocate and fill caches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WARM_UP_STEPS: Final = 20
"""Their number unless ``train.untimed_steps`` is given."""


def untimed_steps(config: Mapping[str, Any]) -> int:
    """Return the number in a run's configuration; 20 if an earlier version without the field stored it."""
    given = (config.get("train") or {}).get("untimed_steps")
    return given if isinstance(given, int) and given > 0 else WARM_UP_STEPS


def warm_up_steps(untimed: int, made: int) -> int:
    """How many of the steps that an attempt made do not count, at least one: of a short one at most its first half."""
    return min(untimed, max(1, made // 2))
