"""The report's figures, drawn with Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .cells import unit
from .conditions import Condition
from .facts import Curve, RunFacts
from .results import Results
from .telemetry import Trace

MOST_CURVES: Final = 12
"""So many conditions are drawn with a colour of their own; who has more reads the tables."""

_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A", "#7570B3", "#66A61E",
    "#999999", "#B2182B",
)  # fmt: skip
"""Okabe and Ito's, which people who see few colours can tell apart, and five more."""

_STYLE: Final = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "dscampaign",
}
_WIDTH: Final = 8.0  # inches
_SMALLEST: Final = 0.3  # inches of a bar

Draw = Callable[[Results], Figure | None]


def draw(results: Results, traces: Sequence[Trace]) -> dict[str, Figure]:
    """All figures that there are data for, by name."""
    with mpl.rc_context(_STYLE):
        drawn = {name: make(results) for name, make in _FIGURES.items()}
        drawn["gpus"] = _gpus(traces)
    return {name: figure for name, figure in drawn.items() if figure}


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element; the same bytes for the same figure."""
    with mpl.rc_context(_STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue().decode()
    return text[text.index("<svg") :]


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots per inch."""
    with mpl.rc_context(_STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()


def _loss(results: Results) -> Figure | None:
    """Loss by steps, by tokens, and by hours of training: of several repeats their mean, with a band."""
    shown = [condition for condition in results.conditions if any(_has_loss(run) for run in condition.runs)]
    if not shown:
        return None
    figure = Figure((_WIDTH, 10.0), layout="constrained")
    axes = figure.subplots(3, 1)
    time_unit_s, time_name = _time_unit(shown)
    for (condition, colour), _ in zip(_coloured(shown), range(MOST_CURVES), strict=False):
        runs = [run for run in condition.runs if _has_loss(run)]
        for axis, pick, scale in zip(axes, _CURVE_AXES, (1.0, 1e6, time_unit_s), strict=True):
            _curve(axis, [run.curve for run in runs], pick, scale, colour, condition.name)
    for axis, label in zip(axes, ("optimizer steps", "million tokens", f"{time_name} of training steps"), strict=True):
        axis.set(xlabel=label, ylabel="loss (nats)")
    axes[0].legend(loc="upper right", fontsize="small", ncols=2 if len(shown) > 6 else 1)
    _say_rest(axes[0], len(shown))
    _zoom(axes, shown[:MOST_CURVES])
    return figure


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
    together = np.ma.masked_invalid(each)
    axis.plot(x, together.mean(axis=0), color=colour, linewidth=1.6, label=name)
    if len(each) > 1:
        axis.fill_between(x, together.min(axis=0), together.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    for curve in curves:
        where = np.interp(curve.eval_step, curve.step, np.asarray(pick(curve)) / scale)
        axis.plot(where, curve.held_out, marker="D", linestyle="none", color=colour, markersize=4, alpha=0.8)


def _zoom(axes: Sequence[Axes], conditions: Sequence[Condition]) -> None:
    """Leaves room for the curves, not for the first steps' noise or one that diverged."""
    values = [v for one in conditions for run in one.runs for v in run.curve.smoothed if math.isfinite(v)]
    if values:
        low, high = np.percentile(values, [0, 99])
        for axis in axes:
            axis.set_ylim(low - 0.05 * (high - low + 0.1), high + 0.08 * (high - low + 0.1))


def _step_time(results: Results) -> Figure | None:
    """Box: quartiles; whiskers: 5th and 95th percentile of the steps of the middle repeat."""
    boxes, colours = [], []
    for condition, colour in _coloured(results.conditions):
        timings = sorted((r.timing for r in condition.counted if r.timing), key=lambda timing: timing.step_s)
        if timings:
            middle = timings[len(timings) // 2]
            low, first, third, high, _ = (1e3 * value for value in middle.quantiles_s)
            boxes.append(
                {
                    "label": condition.name,
                    "whislo": low,
                    "q1": first,
                    "med": 1e3 * middle.step_s,
                    "q3": third,
                    "whishi": high,
                }
            )
            colours.append(colour)
    if not boxes:
        return None
    figure, axis = _bars(len(boxes[:MOST_CURVES]))
    style = {"color": "#333333"}
    drawn = axis.bxp(
        boxes[:MOST_CURVES][::-1], orientation="horizontal", showfliers=False, patch_artist=True, medianprops=style
    )
    for patch, colour in zip(drawn["boxes"], colours[:MOST_CURVES][::-1], strict=True):
        patch.set(facecolor=colour, alpha=0.6)
    axis.set_xlabel("step time (ms); whiskers: 5th to 95th percentile")
    axis.set_xlim(left=0)
    _say_rest(axis, len(boxes))
    return figure


def _speed(results: Results) -> Figure | None:
    """Tokens per second: the median, and every repeat as a point."""
    shown = [(condition, colour) for condition, colour in _coloured(results.conditions) if condition.speeds]
    if not shown:
        return None
    figure, axis = _bars(min(len(shown), MOST_CURVES))
    for place, (condition, colour) in enumerate(shown[:MOST_CURVES][::-1]):
        speeds = condition.speeds
        axis.barh(place, float(np.median(speeds)), color=colour, alpha=0.6, height=0.6)
        axis.plot(speeds, [place] * len(speeds), "o", color="#333333", markersize=3)
    _name(axis, [condition.name for condition, _ in shown[:MOST_CURVES][::-1]])
    tokens = all(run.timing.tokens_per_s for condition, _ in shown for run in condition.counted if run.timing)
    axis.set_xlabel(("tokens" if tokens else "steps") + " per second; points: repeats")
    axis.xaxis.set_major_formatter(_thousands)
    _say_rest(axis, len(shown))
    return figure


def _memory(results: Results) -> Figure | None:
    """Three kinds of memory beside each other."""
    shown = [one for one in results.conditions if one.highest(lambda run: run.memory.reserved) is not None]
    if not shown:
        return None
    figure, axis = _bars(min(len(shown), MOST_CURVES), each=0.5)
    picks: dict[str, tuple[Callable[[RunFacts], float | None], str]] = {
        "allocated": (lambda run: run.memory.allocated, "#0072B2"),
        "reserved": (lambda run: run.memory.reserved, "#56B4E9"),
        "device": (lambda run: run.memory.device, "#999999"),
    }
    for index, (name, (pick, colour)) in enumerate(picks.items()):
        values = [one.highest(pick) for one in shown[:MOST_CURVES][::-1]]
        if any(value is not None for value in values):
            places = np.arange(len(values)) + 0.26 * (1 - index)
            axis.barh(places, [value or 0.0 for value in values], height=0.24, color=colour, label=name)
    usable = max((value for one in shown if (value := one.highest(lambda run: run.memory.usable))), default=None)
    if usable:
        axis.axvline(usable, color="#D55E00", linestyle="--", linewidth=1, label="usable")
    _name(axis, [one.name for one in shown[:MOST_CURVES][::-1]])
    axis.set_xlabel("GB, highest of any rank")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    _say_rest(axis, len(shown))
    return figure


def _gpus(traces: Sequence[Trace]) -> Figure | None:
    """Momentary power against its mean over a second, and temperature under load."""
    if not traces:
        return None
    figure = Figure((_WIDTH, 5.5), layout="constrained")
    power, heat = figure.subplots(2, 1, sharex=True)
    longest_s = max(trace.seconds[-1] for trace in traces)
    scale, name = (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")
    for trace, colour in zip(traces, _COLOURS, strict=False):
        when = np.asarray(trace.seconds) / scale
        power.plot(when, trace.power_w, color=colour, linewidth=0.7, alpha=0.5)
        power.plot(when, trace.power_avg_w, color=colour, linewidth=1.6, label=trace.name)
        heat.plot(when, trace.temperature_c, color=colour, linewidth=1.6)
    power.set_ylabel("W; thin: momentary,\nthick: over one second")
    heat.set(ylabel="°C", xlabel=f"{name} since the first sample")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _goodput(results: Results) -> Figure | None:
    """Where the hours of the GPUs went."""
    cost = results.cost
    if not cost.total:
        return None
    parts = [("training", cost.training, "#009E73"), ("warm-up", cost.warm_up, "#F0E442")]
    parts += [("around it", cost.around, "#56B4E9")]
    reds = ("#D55E00", "#E69F00", "#CC79A7", "#8C510A", "#B2182B", "#999999")
    parts += [(kind.replace("_", " "), value, reds[i % len(reds)]) for i, (kind, value) in enumerate(cost.lost.items())]
    figure = Figure((_WIDTH, 1.5), layout="constrained")
    axis = figure.subplots()
    left = 0.0
    for name, value, colour in parts:
        axis.barh(0, value / 3600, left=left, color=colour, label=f"{name} {value / cost.total:.0%}")
        left += value / 3600
    axis.set(yticks=[], xlabel=unit(results.runs))
    axis.grid(visible=False)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure


_FIGURES: Final[dict[str, Draw]] = {
    "loss": _loss,
    "step_time": _step_time,
    "speed": _speed,
    "memory": _memory,
    "goodput": _goodput,
}


def _coloured(conditions: Sequence[Condition]) -> Iterator[tuple[Condition, str]]:
    for index, condition in enumerate(conditions):
        yield condition, _COLOURS[index % len(_COLOURS)]


def _bars(number: int, each: float = 0.34) -> tuple[Figure, Axes]:
    figure = Figure((_WIDTH, 1.0 + max(each, _SMALLEST) * number), layout="constrained")
    axis = figure.subplots()
    axis.grid(visible=False, axis="y")
    return figure, axis


def _name(axis: Axes, names: Sequence[str]) -> None:
    axis.set_yticks(range(len(names)), [name if len(name) <= 40 else name[:39] + "…" for name in names])


def _thousands(value: float, _place: Any) -> str:
    return f"{value / 1e3:,.0f}k" if abs(value) >= 1e4 else f"{value:,.4g}"


def _has_loss(run: RunFacts) -> bool:
    return any(math.isfinite(value) for value in run.curve.raw)


def _say_rest(axis: Axes, number: int) -> None:
    if number > MOST_CURVES:
        axis.set_title(f"the first {MOST_CURVES} of {number} conditions", loc="left", fontsize="small", color="#666666")
