"""The report's figures, drawn with Matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dscampaign.orchestrator.formatting import words
from dscampaign.orchestrator.report.compare.baseline import speed_text
from dscampaign.orchestrator.report.compare.conditions import Condition
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.telemetry import GpuTrace

from .drawing import (
    GREY,
    HEIGHT,
    SMALL,
    STYLE,
    WIDTH,
    Look,
    Looks,
    entitle,
    labels_of,
    mark_axes,
    name_beside,
    panels,
    thousands,
)
from .figures import colours_of, drawn, front_of, named
from .loss_plots import draw_loss, draw_loss_difference
from .svg import as_svg, mark
from .sweep_plots import draw_sweeps

COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A", "#000099", "#666666",
    "#003300", "#330033",
)  # fmt: skip
"""Okabe and Ito's, and five more: any two can be told apart by people who lack a kind of cone, as a test computes."""

_MEMORY_COLOURS: Final = {"allocated": "#0072B2", "reserved": "#56B4E9", "device": "#999999"}
_SMALLEST: Final = 0.3  # inches of a bar
_LEGEND_CHARACTERS: Final = 78  # in a row, in small type

Draw = Callable[[WorkloadResults, Looks], Figure]
"""Draws a workload's conditions, each as it looks."""


def draw(results: Results, traces: Sequence[GpuTrace]) -> dict[str, Figure]:
    """All figures that there are data for, by name."""
    looks = looks_of(results)
    with mpl.rc_context(STYLE):
        made = {name: make(one, looks) for kind, make in _FIGURES.items() for name, one in named(kind, results)}
        whole = {"gpus": _gpus(traces), "goodput": _goodput(results), **draw_sweeps(results, looks, COLOURS)}
        figures = made | {name: figure for name, figure in whole.items() if figure}
        for figure in figures.values():
            mark_axes(figure)
    return figures


def looks_of(results: Results) -> dict[str, Look]:
    """By name, how each condition is drawn."""
    colours = {name: own for one in results.workloads for name, own in colours_of(one, COLOURS, GREY).items()}
    labels = {
        name: label
        for one in results.workloads
        for names in [[each.name for each in one.workload.conditions]]
        for name, label in zip(names, labels_of(names), strict=True)
    }
    return {name: Look(number, name, labels[name], own) for number, (name, own) in enumerate(colours.items())}


def svg_of(figure: Figure) -> str:
    """The figure as an SVG element."""
    with mpl.rc_context(STYLE):
        text = as_svg(figure)
        figure.set_layout_engine("none")  # laid out once: the picture of it is the same
        return text


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of 200 dots per inch."""
    with mpl.rc_context(STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=200, metadata={"Software": None})
    return stream.getvalue()


def _step_time(one: WorkloadResults, looks: Looks) -> Figure:
    """Box: quartiles; whiskers: 5th and 95th percentile of the steps of the middle repeat."""
    shown = drawn("step_time", one)[::-1]
    figure, axis = _bars(one, len(shown))
    boxes = [_box(condition, looks[condition.name]) for condition in shown]
    bars = axis.bxp(
        boxes, orientation="horizontal", showfliers=False, patch_artist=True, medianprops={"color": "#333333"}
    )
    for place, (condition, box) in enumerate(zip(shown, boxes, strict=True)):
        look = looks[condition.name]
        bars["boxes"][place].set(facecolor=look.colour, alpha=0.6)
        title = f"median {box['med']:.4g} ms, quartiles {box['q1']:.4g} and {box['q3']:.4g} ms"
        look.mark(bars["boxes"][place], title=title)
        of_it = (bars["medians"], 1), (bars["whiskers"], 2), (bars["caps"], 2)
        look.mark(*(part for parts, each in of_it for part in parts[each * place : each * (place + 1)]))
    _mark_names(axis, [looks[condition.name] for condition in shown])
    axis.set_xlabel("step time (ms)")
    axis.set_xlim(left=0)
    return figure


def _box(condition: Condition, look: Look) -> dict[str, Any]:
    timings = sorted((run.timing for run in condition.counted if run.timing), key=lambda timing: timing.step_s)
    middle = timings[len(timings) // 2]
    low, first, third, high, _ = (1e3 * value for value in middle.quantiles_s)
    box = {"whislo": low, "q1": first, "med": 1e3 * middle.step_s, "q3": third, "whishi": high}
    return {"label": look.label, **box}


def _speed(one: WorkloadResults, looks: Looks) -> Figure:
    """Tokens or steps per second: the median, and every repeat as a point."""
    shown = drawn("speed", one)[::-1]
    compared = {each.condition.name: each for each in one.comparisons}
    figure, axis = _bars(one, len(shown))
    for place, condition in enumerate(shown):
        each, look = compared[condition.name], looks[condition.name]
        (bar,) = axis.barh(place, float(np.median(each.speeds)), color=look.colour, alpha=0.6, height=0.6)
        look.mark(bar, title=speed_text(each))
        look.mark(*axis.plot(each.speeds, [place] * len(each.speeds), "o", color="#333333", markersize=3))
    _name(axis, [looks[condition.name] for condition in shown])
    axis.set_xlabel(f"{_unit_of_speed(one)} per second")
    axis.xaxis.set_major_formatter(thousands)
    return figure


def _memory(one: WorkloadResults, looks: Looks) -> Figure:
    shown = drawn("memory", one)[::-1]
    figure, axis = _bars(one, len(shown), each=0.5)
    for index, (name, colour) in enumerate(_MEMORY_COLOURS.items()):
        metric = f"mem_{name}_gb"
        values = [each.value(metric) for each in shown]
        if any(value is not None for value in values):
            places = np.arange(len(values)) + 0.26 * (1 - index)
            bars = axis.barh(places, [value or 0.0 for value in values], height=0.24, color=colour, label=name)
            for bar, condition, value in zip(bars, shown, values, strict=True):
                looks[condition.name].mark(bar, title=f"{name} {METRICS[metric].text(value)}")
    if usable := max((each.value("mem_usable_gb") or 0.0 for each in shown), default=0.0):
        axis.axvline(usable, color="#D55E00", linestyle="--", linewidth=1, label="usable")
    _name(axis, [looks[condition.name] for condition in shown])
    axis.set_xlabel("GB, highest of any rank")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _gpus(traces: Sequence[GpuTrace]) -> Figure | None:
    if not traces:
        return None
    figure = Figure((WIDTH, 5.5), layout="constrained")
    power, heat = figure.subplots(2, 1, sharex=True)
    longest_s = max(trace.seconds[-1] for trace in traces)
    scale, name = (60.0, "minutes") if longest_s > 180 else (1.0, "seconds")
    for trace, colour in zip(traces, COLOURS, strict=False):
        when = np.asarray(trace.seconds) / scale
        power.plot(when, trace.power_w, color=colour, linewidth=0.7, alpha=0.5)
        lines = power.plot(when, trace.power_avg_w, color=colour, linewidth=1.6, label=trace.name)
        lines += heat.plot(when, trace.temperature_c, color=colour, linewidth=1.6)
        for line in lines:
            mark(line, line=trace.name)
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
    figure = Figure((WIDTH, 1.5), layout="constrained")
    axis = figure.subplots()
    left = 0.0
    for name, value, colour in parts:
        (bar,) = axis.barh(0, value / 3600, left=left, color=colour, label=f"{name} {value / cost.total:.0%}")
        mark(bar, title=f"{name}: {value / 3600:.3g} {results.hour_unit} ({value / cost.total:.0%})")
        left += value / 3600
    axis.set(yticks=[], xlabel=results.hour_unit)
    axis.grid(visible=False)
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure


def _speed_memory(one: WorkloadResults, looks: Looks) -> Figure:
    """Each condition at its speed and its memory, named beside it; those on the front are ringed."""
    names = {each.name for each in drawn("speed_memory", one)}
    shown = [(each, each.speed) for each in one.comparisons if each.condition.name in names and each.speed]
    points = [(each.condition.value("mem_reserved_gb") or 0.0, speed.value) for each, speed in shown]
    own = [looks[each.condition.name] for each, _ in shown]
    figure, (axis,) = panels([look.label for look in own], [HEIGHT])
    front = front_of(points)
    axis.plot(*zip(*(points[place] for place in front), strict=True), color=GREY, linewidth=1, zorder=1)
    for place, ((each, speed), look, (memory, value)) in enumerate(zip(shown, own, points, strict=True)):
        if speed.low is not None and speed.high is not None:
            look.mark(*axis.plot([memory] * 2, [speed.low, speed.high], color=look.colour, linewidth=1.4, alpha=0.7))
        ring = "#1c1c1c" if place in front else "white"
        point = axis.plot(
            memory, value, "o", color=look.colour, markersize=7, markeredgecolor=ring, markeredgewidth=1.4
        )
        look.mark(*point, title=f"{speed_text(each)}, {each.condition.text('mem_reserved_gb')}")
    axis.set_xlim(0, 1.06 * max(memory for memory, _ in points) or 1.0)
    axis.set_ylim(0, 1.06 * max(speed.high or speed.value for _, speed in shown))
    axis.set(xlabel="memory reserved (GB, highest of any rank)", ylabel=f"{_unit_of_speed(one)} per second")
    axis.yaxis.set_major_formatter(thousands)
    name_beside(axis, own, points)
    entitle(axis, one)
    return figure


def _unit_of_speed(one: WorkloadResults) -> str:
    return "tokens" if one.comparisons[0].in_tokens else "steps"


_FIGURES: Final[dict[str, Draw]] = {
    "speed_memory": _speed_memory,
    "loss": draw_loss,
    "loss_difference": draw_loss_difference,
    "step_time": _step_time,
    "speed": _speed,
    "memory": _memory,
}


def _bars(one: WorkloadResults, number: int, each: float = 0.34) -> tuple[Figure, Axes]:
    figure = Figure((WIDTH, 1.0 + max(each, _SMALLEST) * number), layout="constrained")
    axis = figure.subplots()
    axis.grid(visible=False, axis="y")
    axis.tick_params(axis="y", labelsize=SMALL)
    entitle(axis, one)
    return figure, axis


def _legend_below(figure: Figure, names: Sequence[str]) -> None:
    """A legend in as many columns as the figure is wide enough for."""
    columns = _LEGEND_CHARACTERS // (6 + max(map(len, names)))  # a line's sample takes the room of six
    figure.legend(loc="outside lower center", ncols=min(4, max(1, columns)), fontsize="small")


def _name(axis: Axes, looks: Sequence[Look]) -> None:
    axis.set_yticks(range(len(looks)), [look.label for look in looks])
    _mark_names(axis, looks)


def _mark_names(axis: Axes, looks: Sequence[Look]) -> None:
    for look, label in zip(looks, axis.get_yticklabels(), strict=True):
        look.mark(label, label=1)
