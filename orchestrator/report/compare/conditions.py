"""Runs that differ in nothing but their seed are repeats of one condition. Pure."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..measure.run import MeasuredRun
from .statistics import Estimate, estimate

ALIKE: Final = 0.02
"""Tokens per step so far apart are the same: a script's own follow from speeds and times that it has rounded."""


@dataclass(frozen=True)
class Condition:
    """One point of the matrix with its repeats.

    Attributes:
        name: of its first run, without the number of the repeat.
        params: what sets it apart.
        runs: its repeats, in their order.
    """

    name: str
    params: Mapping[str, Any]
    runs: tuple[MeasuredRun, ...]

    @property
    def counted(self) -> tuple[MeasuredRun, ...]:
        """Repeats that may be compared: completed, and as the spec asks for them."""
        return tuple(run for run in self.runs if run.completed and not run.changed)

    @property
    def says_tokens(self) -> bool:
        """Whether every counted repeat whose speed is known says it in tokens."""
        return all(run.timing.tokens_per_s for run in self.counted if run.timing and run.timing.step_s > 0)

    def speeds(self, *, in_tokens: bool) -> list[float]:
        """Tokens per second, or else steps per second, of each counted repeat that says them."""
        timings = [run.timing for run in self.counted if run.timing]
        if in_tokens:
            return [timing.tokens_per_s for timing in timings if timing.tokens_per_s]
        return [1.0 / timing.step_s for timing in timings if timing.step_s > 0]

    @property
    def held_out(self) -> list[tuple[int, float]]:
        """Repeat and held-out loss of each counted repeat that has one."""
        return [(run.repeat, run.loss.held_out) for run in self.counted if run.loss.held_out is not None]

    @property
    def tokens_per_step(self) -> int | None:
        """Of its runs, None where they differ or nobody knows. A script's own come from rounded speeds."""
        known = [run.tokens_per_step for run in self.runs if run.tokens_per_step]
        alike = known and max(known) <= (1.0 + ALIKE) * min(known)
        return round(statistics.median(known)) if alike else None

    def median(self, figure: Callable[[MeasuredRun], float | None]) -> Estimate | None:
        """The median of a figure over the counted repeats."""
        return estimate([value for run in self.counted if (value := figure(run)) is not None])

    def loss(self, figure: Callable[[MeasuredRun], float | None]) -> Estimate | None:
        """The median of a loss over the counted repeats; NaN where one of them has none because it was not finite."""
        known = [value for run in self.counted if (value := figure(run)) is not None]
        if all(map(math.isfinite, known)):
            return estimate(known)
        return Estimate(math.nan, None, None, None, None, len(known))

    def highest(self, figure: Callable[[MeasuredRun], float | None]) -> float | None:
        """The highest of a figure over all repeats."""
        return max((value for run in self.runs if (value := figure(run)) is not None), default=None)

    def field(self, name: str) -> Any:
        """A field of the trainer's configuration, None where the condition trains with a script of its own."""
        return (self.runs[0].config.get("train") or {}).get(name)


def conditions_of(runs: Sequence[MeasuredRun]) -> list[Condition]:
    """The conditions of a campaign, in the order of the matrix."""
    grouped: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        grouped.setdefault(json.dumps(run.params, sort_keys=True, default=str), []).append(run)
    found = []
    for group in grouped.values():
        repeats = sorted(group, key=lambda run: run.repeat)
        first = repeats[0]
        name = re.sub(rf"-r{first.repeat}$", "", first.name) if first.repeat else first.name
        found.append(Condition(name, first.params, tuple(repeats)))
    return found


def baseline_of(conditions: Sequence[Condition], name: str | None = None) -> Condition:
    """What all others are compared with: the condition of that name, or the usual one where none has it.

    That is the first that trains without DeepSpeed's engine, else the first of the matrix: among those of which a run
    counts, or among all as long as there are none.

    Args:
        conditions: at least one.
        name: of a condition, or of a run of it.
    """
    named = [each for each in conditions if name in (each.name, *(run.name for run in each.runs))]
    ready = [each for each in conditions if each.counted] or list(conditions)
    plain = [each for each in ready if each.field("engine") == "ddp"]
    return next(iter([*named, *plain, *ready]))
