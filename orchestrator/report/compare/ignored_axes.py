"""Axes of the matrix that a script of one's own seems not to read. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

from dscampaign.orchestrator.report.measure.run import MeasuredRun

from .conditions import grouped, key_of

LEAST_LOSSES: Final = 5
"""Different losses of a run: fewer may be equal by chance, as those of a script that prints two digits."""

_Losses = tuple[tuple[float, float], ...]


def ignored_axes(runs: Iterable[MeasuredRun]) -> Iterator[str]:
    """A sentence for each axis whose values change no digit of any loss, where all else and the seed are the same."""
    known = [(run, losses) for run in runs if run.completed and run.config.get("command") and (losses := _losses(run))]
    for axis in dict.fromkeys(name for run, _ in known for name in run.params):
        if _changes_nothing(axis, known):
            yield f"The script seems to ignore {axis}: its losses are the same to the last digit whatever the value."


def _changes_nothing(axis: str, known: list[tuple[MeasuredRun, _Losses]]) -> bool:
    alike = grouped(known, lambda one: [one[0].repeat, {k: v for k, v in one[0].params.items() if k != axis}])
    several = [group for group in alike if len({key_of(run.params.get(axis)) for run, _ in group}) > 1]
    return bool(several) and all(len({losses for _, losses in group}) == 1 for group in several)


def _losses(run: MeasuredRun) -> _Losses:
    """Steps and losses; none where they say too little."""
    found = tuple((step, loss) for step, loss in zip(run.curve.step, run.curve.raw, strict=True) if math.isfinite(loss))
    return found if len({loss for _, loss in found}) >= LEAST_LOSSES else ()
