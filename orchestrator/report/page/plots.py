"""The report's figures, drawn with Matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...formatting import words
from ..compare.conditions import Condition
from ..compare.results import Results, WorkloadResults
from ..measure.run import Curve
from ..measure.telemetry import GpuTrace
from .figures import colours_of, drawn, front_of, loss_axes, loss_beside, named, spread, where_all_are

_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A", "#7570B3", "#66A61E",
    "#F781BF", "#B2182B",
)  # fmt: skip
"""Okabe and Ito's, which people who see few colours can tell apart, and five more."""

_GREY: Final = "#999999"
"""Of what has no colour of its own."""

_STYLE: Final = {
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "text.parse_math": False,  # a name may hold a $
    "svg.hashsalt": "dscampaign",
}
_MEMORY_COLOURS: Final = {"allocated": "#0072B2", "reserved": "#56B4E9", "device": "#999999"}
_WIDTH: Final = 5.8  # inches of a figure: as small on a telephone as can be read
_SMALLEST: Final = 0.3  # inches of a bar
_LEGEND_CHARACTERS: Final = 88  # in a row, in small type

Draw = Callable[[WorkloadResults, dict[str, str]], Figure]
"""Draws a workload's conditions, each in its colour."""


def draw(results: Results, traces: Sequence[GpuTrace]) -> dict[str, Figure]:
    """All figures that there are data for, by name."""
    with mpl.rc_context(_STYLE):
        made = {
            name: make(one, colours_of(one, _COLOURS, _GREY))
            for kind, make in _FIGURES.items()
            for name, one in named(kind, results)
        }
        whole = {"gpus": _gpus(traces), "goodput": _goodput(results)}
    return made | {name: figure for name, figure in whole.items() if figure}


def as_svg(figure: Figure) -> str:
    """The figure as an SVG element; the same bytes for the same figure."""
    with mpl.rc_context(_STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue().decode()
    return _without_css(text[text.index("<svg") :])


def _without_css(svg: str) -> str:
    """The same with attributes for styles, which a page that allows no style of others would not heed."""
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", '<svg stroke-linejoin="round" stroke-linecap="butt" ', 1)
    return re.sub(r' style="([^"]*)"', lambda found: _attributes(found[1]), svg)


def _attributes(style: str) -> str:
    pairs = (part.split(":", 1) for part in style.split(";") if part.strip())
    return "".join(f' {name.strip()}="{value.strip()}"' for name, value in pairs)


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of 200 dots per inch."""
    with mpl.rc_context(_STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=200, metadata={"Software": None})
    return stream.getvalue()


def _entitle(axis: Axes, one: WorkloadResults) -> None:
    """Says which of several workloads it is."""
    if one.workload.name:
        axis.set_title(one.workload.name, loc="left", fontsize="small", color="#666666")


def _loss(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Loss by steps, by tokens, and by hours of training: of several repeats their mean, with a band."""
    shown = drawn("loss", one)
    time_unit_s, time_name = _time_unit(shown)
    kinds: dict[str, tuple[Callable[[Curve], list[float]], float, str]] = {
        "optimizer steps": (lambda curve: curve.step, 1.0, "optimizer steps"),
        "tokens": (lambda curve: curve.tokens, 1e6, "million tokens"),
        "time of training": (lambda curve: curve.seconds, time_unit_s, f"{time_name} of training steps"),
    }
    panels = [kinds[name] for name in loss_axes(one)]
    figure = Figure((_WIDTH, 0.4 + 3.2 * len(panels)), layout="constrained")
    axes = list(figure.subplots(len(panels), 1, squeeze=False)[:, 0])
    for axis, (pick, scale, label) in zip(axes, panels, strict=True):
        for condition in shown:
            curves = [run.curve for run in condition.runs if run.curve.drawable]
            _curve(axis, curves, pick, scale, colours[condition.name], condition.name)
        axis.set(xlabel=label, ylabel=_loss_label(one))
    axes[0].legend(loc="best", fontsize="small", ncols=2 if len(shown) > 6 else 1)
    _entitle(axes[0], one)
    curves = [run.curve for each in shown for run in each.runs]
    _zoom(axes, [v for curve in curves for v in curve.smoothed], marks=[v for curve in curves for v in curve.held_out])
    return figure


def _loss_difference(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """What curves that lie upon each other hide: each smoothed loss minus the baseline's at the same step."""
    figure = Figure((_WIDTH, 3.8), layout="constrained")
    axis = figure.subplots()
    differences: list[float] = []
    baseline = one.workload.baseline
    axis.axhline(0.0, color=colours[baseline.name], linewidth=1.2, linestyle="--", label=baseline.name)
    for condition in drawn("loss_difference", one):
        steps, apart = loss_beside(condition, baseline)
        axis.plot(steps, apart, color=colours[condition.name], linewidth=1.4, label=condition.name)
        differences += apart.tolist()
    axis.set(xlabel="optimizer steps", ylabel=_loss_label(one, "loss minus the baseline's"))
    _legend_below(figure, [baseline.name, *(each.name for each in drawn("loss_difference", one))])
    _entitle(axis, one)
    _zoom([axis], [*differences, 0.0], least=1e-4)
    return figure


def _loss_label(one: WorkloadResults, what: str = "loss") -> str:
    """With its unit, where that is known."""
    return what if any(run.own_loss for each in one.workload.conditions for run in each.runs) else f"{what} (nats)"


def _time_unit(conditions: Sequence[Condition]) -> tuple[float, str]:
    """Seconds of the unit, and its name."""
    ends = (run.curve.seconds[-1] for one in conditions for run in one.runs if run.curve.seconds)
    longest_s = max(filter(math.isfinite, ends), default=0.0)
    return (3600.0, "hours") if longest_s > 3 * 3600 else (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")


def _curve(
    axis: Axes, curves: Sequence[Curve], pick: Callable[[Curve], list[float]], scale: float, colour: str, name: str
) -> None:
    curves = [curve for curve in curves if _placed(pick(curve))]
    if not curves:
        return
    longest = max(curves, key=lambda curve: pick(curve)[-1])
    x = np.asarray(pick(longest)) / scale
    axis.plot(x, longest.raw, color=colour, alpha=0.18, linewidth=0.7)
    each = [np.interp(x, np.asarray(pick(c)) / scale, c.smoothed, left=math.nan, right=math.nan) for c in curves]
    together = where_all_are(each)
    axis.plot(x, together.mean(axis=0), color=colour, linewidth=1.6, label=name)
    if len(each) > 1:
        axis.fill_between(x, together.min(axis=0), together.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    for curve in curves:
        where = np.interp(curve.eval_step, curve.step, np.asarray(pick(curve)) / scale)
        axis.plot(where, curve.held_out, marker="D", linestyle="none", color=colour, markersize=4, alpha=0.8)


def _placed(values: Sequence[float]) -> bool:
    """Whether it is known where along an axis a curve lies."""
    return any(map(math.isfinite, values))


def _zoom(axes: Sequence[Axes], values: Sequence[float], least: float = 0.1, marks: Sequence[float] = ()) -> None:
    """Leaves room for the curves, not for the first steps' noise or one that diverged.

    So it does for marks that are no farther from the curves than these are high: held-out text that is not learned.
    """
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        low, high = np.percentile(finite, [0, 99])
        height = high - low + least
        near = [mark for mark in marks if low - height <= mark <= high + height]
        low, high = min([low, *near]), max([high, *near])
        for axis in axes:
            axis.set_ylim(low - 0.05 * (high - low + least), high + 0.08 * (high - low + least))


def _step_time(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Box: quartiles; whiskers: 5th and 95th percentile of the steps of the middle repeat."""
    shown = drawn("step_time", one)[::-1]
    figure, axis = _bars(one, len(shown))
    bars = axis.bxp(
        [_box(condition) for condition in shown],
        orientation="horizontal",
        showfliers=False,
        patch_artist=True,
        medianprops={"color": "#333333"},
    )
    for patch, condition in zip(bars["boxes"], shown, strict=True):
        patch.set(facecolor=colours[condition.name], alpha=0.6)
    axis.set_xlabel("step time (ms); whiskers: 5th to 95th percentile")
    axis.set_xlim(left=0)
    return figure


def _box(condition: Condition) -> dict[str, Any]:
    timings = sorted((run.timing for run in condition.counted if run.timing), key=lambda timing: timing.step_s)
    middle = timings[len(timings) // 2]
    low, first, third, high, _ = (1e3 * value for value in middle.quantiles_s)
    box = {"whislo": low, "q1": first, "med": 1e3 * middle.step_s, "q3": third, "whishi": high}
    return {"label": _short(condition.name), **box}


def _speed(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Tokens or steps per second: the median, and every repeat as a point."""
    shown = drawn("speed", one)[::-1]
    compared = {each.condition.name: each for each in one.comparisons}
    figure, axis = _bars(one, len(shown))
    for place, condition in enumerate(shown):
        speeds = compared[condition.name].speeds
        axis.barh(place, float(np.median(speeds)), color=colours[condition.name], alpha=0.6, height=0.6)
        axis.plot(speeds, [place] * len(speeds), "o", color="#333333", markersize=3)
    _name(axis, shown)
    axis.set_xlabel(f"{_unit_of_speed(one)} per second; points: repeats")
    axis.xaxis.set_major_formatter(_thousands)
    return figure


def _memory(one: WorkloadResults, _colours: dict[str, str]) -> Figure:
    """Three kinds of memory beside each other."""
    shown = drawn("memory", one)[::-1]
    figure, axis = _bars(one, len(shown), each=0.5)
    for index, (name, colour) in enumerate(_MEMORY_COLOURS.items()):
        values = [each.value(f"mem_{name}_gb") for each in shown]
        if any(value is not None for value in values):
            places = np.arange(len(values)) + 0.26 * (1 - index)
            axis.barh(places, [value or 0.0 for value in values], height=0.24, color=colour, label=name)
    if usable := max((each.value("mem_usable_gb") or 0.0 for each in shown), default=0.0):
        axis.axvline(usable, color="#D55E00", linestyle="--", linewidth=1, label="usable")
    _name(axis, shown)
    axis.set_xlabel("GB, highest of any rank")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _gpus(traces: Sequence[GpuTrace]) -> Figure | None:
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
    _legend_below(figure, [trace.name for trace in traces])
    return figure


def _goodput(results: Results) -> Figure | None:
    """Where the hours of the GPUs went."""
    cost = results.cost
    if not cost.total:
        return None
    parts = [("training", cost.training, "#009E73"), ("warm-up", cost.warm_up, "#F0E442")]
    parts += [("around it", cost.around, "#56B4E9")]
    parts += [("search", cost.search, "#CC79A7")] if cost.search else []
    parts += [("screening", cost.screening, "#F0E442")] if cost.screening else []
    parts += [("step times not known", cost.untimed, "#BBBBBB")] if cost.untimed else []
    reds = ("#D55E00", "#E69F00", "#CC79A7", "#8C510A", "#B2182B", "#999999")
    parts += [(words(kind), value, reds[i % len(reds)]) for i, (kind, value) in enumerate(cost.lost.items())]
    figure = Figure((_WIDTH, 1.5), layout="constrained")
    axis = figure.subplots()
    left = 0.0
    for name, value, colour in parts:
        axis.barh(0, value / 3600, left=left, color=colour, label=f"{name} {value / cost.total:.0%}")
        left += value / 3600
    axis.set(yticks=[], xlabel=results.hour_unit)
    axis.grid(visible=False)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure


def _speed_memory(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Each condition at its speed and its memory, named beside it; those on the front are ringed."""
    names = {each.name for each in drawn("speed_memory", one)}
    shown = [(each, each.speed) for each in one.comparisons if each.condition.name in names and each.speed]
    points = [(each.condition.value("mem_reserved_gb") or 0.0, speed.value) for each, speed in shown]
    height = max(3.6, 1.2 + 0.2 * len(shown))
    figure = Figure((_WIDTH, height))
    low, top = 0.55 / height, 0.25 / height
    axis = figure.add_axes((0.1, low, 0.53, 1 - low - top))
    front = front_of(points)
    axis.plot(*zip(*(points[place] for place in front), strict=True), color=_GREY, linewidth=1, zorder=1)
    for place, ((each, speed), (memory, value)) in enumerate(zip(shown, points, strict=True)):
        colour = colours[each.condition.name]
        if speed.low is not None and speed.high is not None:
            axis.plot([memory, memory], [speed.low, speed.high], color=colour, linewidth=1.4, alpha=0.7)
        ring = "#1c1c1c" if place in front else "white"
        axis.plot(memory, value, "o", color=colour, markersize=8, markeredgecolor=ring, markeredgewidth=1.4)
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.set(xlabel="memory reserved (GB, highest of any rank)", ylabel=f"{_unit_of_speed(one)} per second")
    axis.yaxis.set_major_formatter(_thousands)
    _name_beside(axis, [each.condition.name for each, _ in shown], points, 0.19 / (height - 0.8))
    _entitle(axis, one)
    return figure


def _name_beside(axis: Axes, names: Sequence[str], points: Sequence[tuple[float, float]], apart: float) -> None:
    """Names in a column right of the axis, each joined to its point; `apart` is a part of the axis' height."""
    bottom, top = axis.get_ylim()
    places = spread([(value - bottom) / (top - bottom) for _, value in points], apart)
    excess = max(0.0, max(places) - 1.0)  # a crowd at the top grows downwards
    for name, (memory, value), place in zip(names, points, places, strict=True):
        line = {"arrowstyle": "-", "color": "#bbbbbb", "linewidth": 0.7, "shrinkB": 5, "relpos": (0, 0.5)}
        axis.annotate(
            _short(name),
            (memory, value), (1.03, place - excess), textcoords="axes fraction",
            va="center", fontsize="small", arrowprops=line, annotation_clip=False,
        )  # fmt: skip


def _unit_of_speed(one: WorkloadResults) -> str:
    return "tokens" if one.comparisons[0].in_tokens else "steps"


_FIGURES: Final[dict[str, Draw]] = {
    "speed_memory": _speed_memory,
    "loss": _loss,
    "loss_difference": _loss_difference,
    "step_time": _step_time,
    "speed": _speed,
    "memory": _memory,
}


def _bars(one: WorkloadResults, number: int, each: float = 0.34) -> tuple[Figure, Axes]:
    figure = Figure((_WIDTH, 1.0 + max(each, _SMALLEST) * number), layout="constrained")
    axis = figure.subplots()
    axis.grid(visible=False, axis="y")
    _entitle(axis, one)
    return figure, axis


def _legend_below(figure: Figure, names: Sequence[str]) -> None:
    """A legend in as many columns as the figure is wide enough for."""
    columns = _LEGEND_CHARACTERS // (6 + max(map(len, names)))  # a line's sample takes the room of six
    figure.legend(loc="outside lower center", ncols=min(4, max(1, columns)), fontsize="small")


def _name(axis: Axes, conditions: Sequence[Condition]) -> None:
    axis.set_yticks(range(len(conditions)), [_short(condition.name) for condition in conditions])


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def _thousands(value: float, _place: Any) -> str:
    return f"{value / 1e3:,.0f}k" if abs(value) >= 1e4 else f"{value:,.4g}"
