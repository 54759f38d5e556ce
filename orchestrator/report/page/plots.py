"""The report's figures, drawn with Matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..compare.conditions import Condition
from ..compare.results import Results, WorkloadResults
from ..compare.wording import unit
from ..measure.run import MeasuredRun
from ..measure.telemetry import Trace
from .curves import WIDTH, entitle, loss, loss_difference
from .figures import colours_of, drawn, named

_COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C510A", "#7570B3", "#66A61E",
    "#F781BF", "#B2182B",
)  # fmt: skip
"""Okabe and Ito's, which people who see few colours can tell apart, and five more."""

_GREY: Final = "#999999"
"""Of what has no colour of its own."""

_STYLE: Final = {
    "font.size": 10,
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
_SMALLEST: Final = 0.3  # inches of a bar

Draw = Callable[[WorkloadResults, dict[str, str]], Figure]
"""Draws a workload's conditions, each in its colour."""


def draw(results: Results, traces: Sequence[Trace]) -> dict[str, Figure]:
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
    return text[text.index("<svg") :]


def as_png(figure: Figure) -> bytes:
    """The figure as a PNG of 150 dots per inch."""
    with mpl.rc_context(_STYLE):
        stream = BytesIO()
        figure.savefig(stream, format="png", dpi=150, metadata={"Software": None})
    return stream.getvalue()


def _step_time(one: WorkloadResults, colours: dict[str, str]) -> Figure:
    """Box: quartiles; whiskers: 5th and 95th percentile of the steps of the middle repeat."""
    shown = drawn("step_time", one)[::-1]
    figure, axis = _bars(len(shown))
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
    entitle(axis, one)
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
    judged = {each.condition.name: each for each in one.judged}
    figure, axis = _bars(len(shown))
    for place, condition in enumerate(shown):
        speeds = judged[condition.name].speeds
        axis.barh(place, float(np.median(speeds)), color=colours[condition.name], alpha=0.6, height=0.6)
        axis.plot(speeds, [place] * len(speeds), "o", color="#333333", markersize=3)
    _name(axis, shown)
    axis.set_xlabel(("tokens" if one.judged[0].in_tokens else "steps") + " per second; points: repeats")
    axis.xaxis.set_major_formatter(_thousands)
    entitle(axis, one)
    return figure


def _memory(one: WorkloadResults, _colours: dict[str, str]) -> Figure:
    """Three kinds of memory beside each other."""
    shown = drawn("memory", one)[::-1]
    figure, axis = _bars(len(shown), each=0.5)
    picks: dict[str, tuple[Callable[[MeasuredRun], float | None], str]] = {
        "allocated": (lambda run: run.memory.allocated, "#0072B2"),
        "reserved": (lambda run: run.memory.reserved, "#56B4E9"),
        "device": (lambda run: run.memory.device, "#999999"),
    }
    for index, (name, (pick, colour)) in enumerate(picks.items()):
        values = [each.highest(pick) for each in shown]
        if any(value is not None for value in values):
            places = np.arange(len(values)) + 0.26 * (1 - index)
            axis.barh(places, [value or 0.0 for value in values], height=0.24, color=colour, label=name)
    usable = max((value for each in shown if (value := each.highest(lambda run: run.memory.usable))), default=None)
    if usable:
        axis.axvline(usable, color="#D55E00", linestyle="--", linewidth=1, label="usable")
    _name(axis, shown)
    axis.set_xlabel("GB, highest of any rank")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    entitle(axis, one)
    return figure


def _gpus(traces: Sequence[Trace]) -> Figure | None:
    """Momentary power against its mean over a second, and temperature under load."""
    if not traces:
        return None
    figure = Figure((WIDTH, 5.5), layout="constrained")
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
    figure = Figure((WIDTH, 1.5), layout="constrained")
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
    "loss": loss,
    "loss_difference": loss_difference,
    "step_time": _step_time,
    "speed": _speed,
    "memory": _memory,
}


def _bars(number: int, each: float = 0.34) -> tuple[Figure, Axes]:
    figure = Figure((WIDTH, 1.0 + max(each, _SMALLEST) * number), layout="constrained")
    axis = figure.subplots()
    axis.grid(visible=False, axis="y")
    return figure, axis


def _name(axis: Axes, conditions: Sequence[Condition]) -> None:
    axis.set_yticks(range(len(conditions)), [_short(condition.name) for condition in conditions])


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"


def _thousands(value: float, _place: Any) -> str:
    return f"{value / 1e3:,.0f}k" if abs(value) >= 1e4 else f"{value:,.4g}"
