"""Figures of losses: curves that coincide are drawn as dashes by turns, and each has its name at its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dscampaign.orchestrator.formatting import loss_number
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import WorkloadResults
from dscampaign.orchestrator.report.measure.losses import Curve

from .drawing import HEIGHT, Look, Looks, entitle, name_beside, panels
from .figures import coinciding, drawn, loss_axes, loss_beside, where_all_are

_NEAR: Final = 0.006
"""Curves no farther apart than this part of the axis cover each other."""

_FIRST: Final = 12
"""A part of so many, at the beginning of a curve, may lie above the axis."""

_DASH, _ROUND = 8.0, 64.0  # points of a dash at most, and of all dashes that take turns

Pick = Callable[[Curve], list[float]]


def draw_loss(one: WorkloadResults, looks: Looks) -> Figure:
    """Loss by steps and tokens, and by time of training: of several repeats their mean, with a band."""
    shown = drawn("loss", one)
    time_unit_s, time_name = _time_unit(shown)
    kinds: dict[str, tuple[Pick, float, str]] = {
        "optimizer steps": (lambda curve: curve.step, 1.0, "optimizer steps"),
        "tokens": (lambda curve: curve.tokens, 1e6, "million tokens"),
        "time of training": (lambda curve: curve.seconds, time_unit_s, f"{time_name} of training steps"),
    }
    names = loss_axes(one)
    per_step = _tokens_per_step(shown)
    if per_step and "tokens" in names:
        names.remove("tokens")  # they are a second scale of the steps
    above = 0.8 if one.workload.name else 0.6
    tops = [above if per_step and name == "optimizer steps" else 0.25 for name in names]
    figure, axes = panels([looks[each.name].label for each in shown], [HEIGHT] * len(names), tops)
    curves = [run.curve for each in shown for run in each.runs]
    _zoom(axes, [curve.smoothed for curve in curves], marks=[v for curve in curves for v in curve.held_out])
    for axis, name in zip(axes, names, strict=True):
        pick, scale, label = kinds[name]
        _curves(axis, shown, looks, pick, scale)
        axis.set(xlabel=label, ylabel=_loss_label(one))
        if per_step and name == "optimizer steps":
            _scale_above(axis, per_step / 1e6, "million tokens")
    entitle(axes[0], one)
    return figure


def draw_loss_difference(one: WorkloadResults, looks: Looks) -> Figure:
    """What curves that lie upon each other hide: each smoothed loss minus the baseline's at the same step."""
    baseline, shown = one.workload.baseline, drawn("loss_difference", one)
    figure, (axis,) = panels([looks[each.name].label for each in (baseline, *shown)], [HEIGHT])
    beside = [loss_beside(condition, baseline) for condition in shown]
    _zoom([axis], [apart.tolist() for _, apart in beside], least=1e-4, marks=[0.0])
    first, last = min(steps[0] for steps, _ in beside), max(steps[-1] for steps, _ in beside)
    (zero,) = axis.plot([first, last], [0.0, 0.0], color=looks[baseline.name].colour, linewidth=1.6)
    looks[baseline.name].mark(zero, line=baseline.name)
    _lines(axis, [looks[each.name] for each in shown], beside)
    axis.set(xlabel="optimizer steps", ylabel=_loss_label(one, "loss minus the baseline's"))
    ends = [(last, 0.0), *(_end(steps, apart) for steps, apart in beside)]
    name_beside(axis, [looks[each.name] for each in (baseline, *shown)], ends)
    entitle(axis, one)
    return figure


def _scale_above(axis: Axes, factor: float, label: str) -> None:

    def there(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x * factor

    def back(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return x / factor

    axis.secondary_xaxis("top", functions=(there, back)).set_xlabel(label)  # type: ignore[arg-type]


def _loss_label(one: WorkloadResults, what: str = "loss") -> str:
    """With its unit, where that is known."""
    return what if any(run.own_loss for each in one.workload.conditions for run in each.runs) else f"{what} (nats)"


def _time_unit(conditions: Sequence[Condition]) -> tuple[float, str]:
    """Seconds of the unit, and its name."""
    ends = (run.curve.seconds[-1] for one in conditions for run in one.runs if run.curve.seconds)
    longest_s = max(filter(math.isfinite, ends), default=0.0)
    return (3600.0, "hours") if longest_s > 3 * 3600 else (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")


def _tokens_per_step(conditions: Sequence[Condition]) -> float | None:
    """Where it is the same for all; None if it is not, or not known."""
    curves = [run.curve for one in conditions for run in one.runs if run.curve.drawable]
    each = {curve.tokens[-1] / curve.step[-1] for curve in curves if curve.step[-1] > 0}  # some count from 0
    return each.pop() if len(each) == 1 and all(map(math.isfinite, each)) else None


def _curves(axis: Axes, shown: Sequence[Condition], looks: Looks, pick: Pick, scale: float) -> None:
    """The mean of each condition's repeats with its band and its held-out losses; of one alone each step, too."""
    found: list[tuple[Look, list[Curve], NDArray[np.float64], Any]] = []
    for condition in shown:
        curves = [run.curve for run in condition.runs if run.curve.drawable and _placed(pick(run.curve))]
        if curves:
            x = np.asarray(pick(max(curves, key=lambda curve: pick(curve)[-1]))) / scale
            each = [
                np.interp(x, np.asarray(pick(c)) / scale, c.smoothed, left=math.nan, right=math.nan) for c in curves
            ]
            found.append((looks[condition.name], curves, x, where_all_are(each)))
    for look, curves, x, together in found:
        if len(shown) == 1:
            longest = max(curves, key=lambda curve: pick(curve)[-1])
            look.mark(*axis.plot(x, longest.raw, color=look.colour, alpha=0.25, linewidth=0.7))
        if len(curves) > 1:
            band = axis.fill_between(
                x, together.min(axis=0), together.max(axis=0), color=look.colour, alpha=0.2, linewidth=0
            )
            look.mark(band)
        for curve in curves:
            where = np.interp(curve.eval_step, curve.step, np.asarray(pick(curve)) / scale)
            style: dict[str, Any] = {"marker": "D", "linestyle": "none", "markersize": 3.5, "alpha": 0.8}
            points = axis.plot(where, curve.held_out, color=look.colour, **style)
            look.mark(*points, title=f"held-out loss {loss_number(curve.held_out[-1])}" if curve.held_out else "")
    means = [(x, together.mean(axis=0).filled(math.nan)) for _, _, x, together in found]
    _lines(axis, [look for look, *_ in found], means)
    name_beside(axis, [look for look, *_ in found], [_end(x, mean) for x, mean in means])


def _lines(
    axis: Axes, looks: Sequence[Look], curves: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> None:
    """Draw curves; those that coincide as dashes that take turns, so that each is seen."""
    bottom, top = axis.get_ylim()
    places = np.linspace(min(x[0] for x, _ in curves), max(x[-1] for x, _ in curves), 200)
    same = [np.interp(places, x, y, left=math.nan, right=math.nan) for x, y in curves]
    for group in coinciding(same, _NEAR * (top - bottom)):
        dash = min(_DASH, _ROUND / len(group))
        for turn, place in enumerate(group):
            look, (x, y) = looks[place], curves[place]
            style: Any = "-" if len(group) == 1 else (turn * dash, (dash, (len(group) - 1) * dash))
            line = axis.plot(x, y, color=look.colour, linewidth=1.6, linestyle=style, dash_capstyle="butt")
            look.mark(*line, line=look.name, turn=group[0] + 1 if len(group) > 1 else "")


def _end(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    known = np.flatnonzero(np.isfinite(y))
    return (float(x[known[-1]]), float(y[known[-1]])) if known.size else (float(x[-1]), 0.0)


def _placed(values: Sequence[float]) -> bool:
    """Return whether it is known where along an axis a curve lies."""
    return any(map(math.isfinite, values))


def _zoom(
    axes: Sequence[Axes], curves: Sequence[Sequence[float]], least: float = 0.1, marks: Sequence[float] = ()
) -> None:
    """Leave room for the curves, not for how they fall in the first steps or for one that diverged.

    So it does for marks that are no farther from the curves than these are high: held-out text that is not learned.
    """
    every = [value for curve in curves for value in curve if math.isfinite(value)]
    settled = [value for curve in curves for value in curve[len(curve) // _FIRST :] if math.isfinite(value)]
    if settled:
        lowest, highest = min(every), float(np.percentile(every, 99))
        height = highest - lowest + least
        near = [mark for mark in marks if lowest - height <= mark <= highest + height]
        low, high = min([*settled, *near]), max([float(np.percentile(settled, 99)), *near])
        for axis in axes:
            axis.set_ylim(low - 0.05 * (high - low + least), high + 0.08 * (high - low + least))
