"""The losses of a workload's conditions, drawn with Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..compare.conditions import Condition
from ..compare.results import WorkloadResults
from ..measure.run import Curve
from .figures import drawn, has_loss

WIDTH: Final = 8.0
"""Of a figure, in inches."""


def entitle(axis: Axes, one: WorkloadResults) -> None:
    """Says which of several workloads it is."""
    if one.workload.name:
        axis.set_title(one.workload.name, loc="left", fontsize="small", color="#666666")


def loss(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Loss by steps, by tokens, and by hours of training: of several repeats their mean, with a band."""
    shown = drawn("loss", one)
    figure = Figure((WIDTH, 10.0), layout="constrained")
    axes = figure.subplots(3, 1)
    time_unit_s, time_name = _time_unit(shown)
    for condition in shown:
        curves = [run.curve for run in condition.runs if has_loss(run)]
        for axis, pick, scale in zip(axes, _CURVE_AXES, (1.0, 1e6, time_unit_s), strict=True):
            _curve(axis, curves, pick, scale, colours[condition.name], condition.name)
    for axis, label in zip(axes, ("optimizer steps", "million tokens", f"{time_name} of training steps"), strict=True):
        axis.set(xlabel=label, ylabel="loss (nats)")
    axes[0].legend(loc="upper right", fontsize="small", ncols=2 if len(shown) > 6 else 1)
    entitle(axes[0], one)
    _zoom(axes, [v for each in shown for run in each.runs for v in run.curve.smoothed])
    return figure


def loss_difference(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """What curves that lie upon each other hide: each smoothed loss minus the baseline's at the same step."""
    figure = Figure((WIDTH, 3.8), layout="constrained")
    axis = figure.subplots()
    differences: list[float] = []
    baseline = one.workload.baseline
    steps, zero = _mean_loss(baseline)
    axis.axhline(0.0, color=colours[baseline.name], linewidth=1.2, linestyle="--", label=baseline.name)
    for condition in drawn("loss_difference", one):
        own_steps, own = _mean_loss(condition)
        apart = own - np.interp(own_steps, steps, zero, left=math.nan, right=math.nan)
        axis.plot(own_steps, apart, color=colours[condition.name], linewidth=1.4, label=condition.name)
        differences += apart.tolist()
    axis.set(xlabel="optimizer steps", ylabel="loss minus the baseline's (nats)")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    entitle(axis, one)
    _zoom([axis], [*differences, 0.0], least=1e-4)
    return figure


def _mean_loss(condition: Condition) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps of the longest repeat, and the mean of all repeats' smoothed losses there."""
    curves = [run.curve for run in condition.runs if has_loss(run)]
    steps = np.asarray(max((curve.step for curve in curves), key=lambda found: found[-1]))
    each = [np.interp(steps, curve.step, curve.smoothed, left=math.nan, right=math.nan) for curve in curves]
    return steps, _where_all_are(each).mean(axis=0).filled(math.nan)


def _where_all_are(curves: Sequence[NDArray[np.float64]]) -> np.ma.MaskedArray[Any, Any]:
    """The curves where each has a value: a mean over fewer would jump where one ends."""
    together = np.ma.masked_invalid(curves)
    return np.ma.masked_where(np.broadcast_to(together.mask.any(axis=0), together.shape), together)


def _time_unit(conditions: Sequence[Condition]) -> tuple[float, str]:
    """Seconds of the unit, and its name."""
    longest_s = max((run.curve.seconds[-1] for one in conditions for run in one.runs if run.curve.seconds), default=0.0)
    return (3600.0, "hours") if longest_s > 3 * 3600 else (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")


_CURVE_AXES: Final[tuple[Callable[[Curve], list[float]], ...]] = (
    lambda curve: curve.step,
    lambda curve: curve.tokens,
    lambda curve: curve.seconds,
)


def _curve(
    axis: Axes, curves: Sequence[Curve], pick: Callable[[Curve], list[float]], scale: float, colour: str, name: str
) -> None:
    longest = max(curves, key=lambda curve: pick(curve)[-1] if pick(curve) else 0.0)
    x = np.asarray(pick(longest)) / scale
    if not np.isfinite(x).any():
        return
    axis.plot(x, longest.raw, color=colour, alpha=0.18, linewidth=0.7)
    each = [np.interp(x, np.asarray(pick(c)) / scale, c.smoothed, left=math.nan, right=math.nan) for c in curves]
    together = _where_all_are(each)
    axis.plot(x, together.mean(axis=0), color=colour, linewidth=1.6, label=name)
    if len(each) > 1:
        axis.fill_between(x, together.min(axis=0), together.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    for curve in curves:
        where = np.interp(curve.eval_step, curve.step, np.asarray(pick(curve)) / scale)
        axis.plot(where, curve.held_out, marker="D", linestyle="none", color=colour, markersize=4, alpha=0.8)


def _zoom(axes: Sequence[Axes], values: Sequence[float], least: float = 0.1) -> None:
    """Leaves room for the curves, not for the first steps' noise or one that diverged."""
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        low, high = np.percentile(finite, [0, 99])
        for axis in axes:
            axis.set_ylim(low - 0.05 * (high - low + least), high + 0.08 * (high - low + least))
