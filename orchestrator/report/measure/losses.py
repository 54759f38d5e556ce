"""How well a run learned: its losses, and their curve. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from dscampaign.db.series import Series, final_loss

from .timing import Lines, smooth

CURVE_POINTS: Final = 400


@dataclass(frozen=True)
class Loss:
    """Losses in nats.

    Attributes:
        first, best: of single steps, if they are finite.
        final: mean over the last steps, see ``final_loss``; NaN if the newest of them was not finite.
        held_out: the newest on held-out text; NaN if it was not finite, or the training loss no longer was after it.
    """

    first: float | None
    best: float | None
    final: float | None
    held_out: float | None

    @property
    def reduction(self) -> float | None:
        """The reduction of the loss as a part of the first loss."""
        return (self.first - self.final) / abs(self.first) if self.first and self.final is not None else None


@dataclass(frozen=True)
class LossCurve:
    """The loss of a run, thinned to at most ``CURVE_POINTS`` lines; NaN if unknown.

    Attributes:
        step, seconds: optimizer steps and seconds of training so far. The seconds are of steps alone; steps of
            warm-ups, and steps of unknown time, count as the run's median step.
        raw, smoothed: single steps, and a trailing mean over a fiftieth of the run.
        eval_step, held_out: evaluations on held-out text.
    """

    step: list[float]
    seconds: list[float]
    raw: list[float]
    smoothed: list[float]
    eval_step: list[float]
    held_out: list[float]

    @property
    def drawable(self) -> bool:
        """Whether any loss of it is known."""
        return any(map(math.isfinite, self.raw))


def loss_of(series: Series, final: float | None = None) -> Loss:
    """Return the losses of a run's steps; `final` as it was before the run was thinned."""
    loss = np.asarray(series.figures["loss"])
    finite = loss[np.isfinite(loss)]
    ended_at = series.ended_at.get("loss")
    evaluated = np.flatnonzero(np.isfinite(series.figures["eval_loss"]))
    newest = int(evaluated[-1]) if evaluated.size else None
    held_out = None if newest is None else series.figures["eval_loss"][newest]
    if "eval_loss" in series.ended_at or (
        newest is not None and ended_at is not None and series.step[newest] < ended_at
    ):
        held_out = math.nan
    if not finite.size:
        return Loss(None, None, math.nan if ended_at is not None else None, held_out)
    if ended_at is not None:
        final = math.nan
    elif final is None:
        final = final_loss(series.step, series.figures["loss"])
    return Loss(float(finite[0]), float(finite.min()), final, held_out)


def curve_of(series: Series, lines: Lines) -> LossCurve:
    """Return the curve of a run's loss."""
    loss, held_out = (np.asarray(series.figures[name]) for name in ("loss", "eval_loss"))
    shown = np.unique(np.linspace(0, loss.size - 1, min(loss.size, CURVE_POINTS)).astype(int))
    evaluated = np.flatnonzero(np.isfinite(held_out))
    step = lines.step.astype(float)
    return LossCurve(
        step=step[shown].tolist(),
        seconds=np.cumsum(lines.steady_s())[shown].tolist(),
        raw=loss[shown].tolist(),
        smoothed=smooth(loss, shown).tolist(),
        eval_step=step[evaluated].tolist(),
        held_out=held_out[evaluated].tolist(),
    )
