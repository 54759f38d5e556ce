"""Detect that the reported loss of a training is not real any more. Pure.

The Hugging Face Trainer leaves losses that are not finite out of its mean, which is 0 in the end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from dscampaign.db.storable import is_whole

_PART: Final = r"(?:eval|evaluation|val|valid|validation|dev|test|held_?out)"
_LOSS: Final = re.compile(
    rf"(?:(?:train|training|{_PART})[_/. -])?loss|loss[_/. -](?:train|training|{_PART})", re.IGNORECASE
)
"""The loss that scripts train or evaluate, not a part of it, which a step may lack."""
_HELD_OUT: Final = re.compile(rf"(?:.*[_/. -])?{_PART}(?:[_/. -].*)?", re.IGNORECASE)
_NORM: Final = re.compile(
    r"(?:(?:train|training|global|total)[_/. -])*grad(?:ient)?s?[_/. -]?norm(?:[_/. -]total)?", re.IGNORECASE
)

_LOST_NORMS: Final = 10
"""fp16 skips steps whose gradients overflow: a few together, but not so many once its loss scale is settled."""
_ZEROS: Final = 3
_FALL: Final = 0.1  # a loss that approaches 0, and is rounded, passes smaller values before


def diverged(rows: Iterable[Mapping[str, Any]], *, from_start: bool = True) -> tuple[str, int] | None:
    """Return the figure that is not finite at the end, and the step since when; None if the loss is real.

    `from_start`: whether the first row is the training's first; otherwise all was well before.
    """
    watch = _Watch(from_start)
    for step, row in _by_step(rows):
        watch.look(step, row)
    return watch.result()


def is_real(loss: float, grad_norm: float | None) -> bool:
    """Return whether a finite loss was reported, and not 0 in place of another beside a gradient that is lost."""
    return math.isfinite(loss) and not (loss == 0 and grad_norm is not None and not math.isfinite(grad_norm))


class _Watch:
    def __init__(self, from_start: bool) -> None:
        self._lost: dict[str, tuple[str, int]] = {}
        self._norms: list[int] = []
        self._zeros: list[int] = []
        self._norm_was_finite, self._zero_is_usual = not from_start, False
        self._before = 0.0 if from_start else math.inf

    def look(self, step: int, row: Mapping[str, float]) -> None:
        norm = next((row[name] for name in row if _NORM.fullmatch(name)), None)
        losses = {name: value for name, value in row.items() if _LOSS.fullmatch(name)}
        for name, loss in losses.items():
            if is_real(loss, norm):
                self._lost.pop(name, None)
            else:
                self._lost.setdefault(name, (f"{name} (reported as 0)" if loss == 0 else name, step))
        held_out = any(_HELD_OUT.fullmatch(name) and math.isfinite(loss) for name, loss in losses.items())
        self._look_at_norm(step, norm, held_out)
        if held_out or norm is not None:
            self._zeros = []
        for loss in [loss for name, loss in losses.items() if norm is None and not _HELD_OUT.fullmatch(name)][:1]:
            self._look_at_zero(step, loss)

    def _look_at_norm(self, step: int, norm: float | None, held_out: bool) -> None:
        if held_out:  # which takes weights that are finite
            self._norms = []
        elif norm is not None and math.isfinite(norm):
            self._norm_was_finite, self._norms = True, []
        elif norm is not None and self._norm_was_finite:
            self._norms.append(step)

    def _look_at_zero(self, step: int, loss: float) -> None:
        if loss == 0:
            self._zeros.append(step)
            return
        self._zero_is_usual |= bool(self._zeros)
        self._zeros, self._before = [], loss

    def result(self) -> tuple[str, int] | None:
        lost = min(self._lost.items(), key=lambda item: (item[0] != "loss", item[1][1]), default=None)
        if lost:
            return lost[1]
        if len(self._norms) >= _LOST_NORMS:
            return "grad_norm", self._norms[0]
        if len(self._zeros) >= _ZEROS and self._before >= _FALL and not self._zero_is_usual:
            return "loss (reported as 0)", self._zeros[0]
        return None


def _by_step(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, dict[str, float]]]:
    step, merged = -1, dict[str, float]()
    for row in rows:
        if not is_whole(row.get("step")):
            continue
        if row["step"] != step:
            if merged:
                yield step, merged
            step, merged = row["step"], {}
        for name, value in row.items():
            if isinstance(value, float) or (type(value) is int and is_whole(abs(value))):
                merged.setdefault(name, value)
    if merged:
        yield step, merged
