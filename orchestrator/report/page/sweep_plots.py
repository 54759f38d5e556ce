"""Figures of sweeps: small charts along an axis, and heat maps of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.report.compare.sweeps import Grid, Line, Sweep

from .drawing import GREY, WIDTH, Looks, thousands
from .sweeps import (
    LOSS,
    MOST_LINES,
    STEP,
    Measure,
    axis_label,
    drawn_grids,
    drawn_sweeps,
    failed,
    measures_of,
    value_text,
)

_WIDE: Final = 8.0
"""An axis whose values span more is logarithmic."""
_HEIGHT: Final = 1.9  # inches of a chart
_CELL: Final = 0.34  # inches
_MOST_POINTS: Final = 60
"""Of a line that are drawn one by one, so that each says what it is; more lie upon each other."""
_LEGEND_CHARACTERS: Final = 70  # in a row, in small type


def draw_sweeps(results: Results, looks: Looks, colours: Sequence[str]) -> dict[str, Figure]:
    """The figures of all sweeps and heat maps, by name."""
    found = {name: _sweep(sweep, looks, colours) for name, sweep in drawn_sweeps(results)}
    return found | {name: _grid(grid, looks) for name, grid in drawn_grids(results)}


def _sweep(sweep: Sweep, looks: Looks, colours: Sequence[str]) -> Figure:
    measures, lines = measures_of(sweep), sweep.lines[:MOST_LINES]
    rows = math.ceil(len(measures) / 2)
    named = len(lines) > 1
    figure = Figure((WIDTH, _HEIGHT * rows + 0.2 * named * len(lines)), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, min(2, len(measures)), squeeze=False)).flatten()
    for axis, measure in zip(axes, measures, strict=False):
        for line, colour in zip(lines, _colours(lines, looks, colours), strict=True):
            _draw(axis, line, measure, colour, looks)
        axis.set_ylabel(measure.label)
        if measure is not LOSS:
            axis.set_ylim(0, 1.06 * axis.get_ylim()[1])
        axis.yaxis.set_major_formatter(FuncFormatter(thousands))
        _scale(axis, sweep)
    for axis in axes[len(measures) :]:
        axis.set_visible(False)
    if named:
        longest = max(len(line.name) for line in lines)
        columns = max(1, min(3, _LEGEND_CHARACTERS // (6 + longest)))
        entries = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, fontsize="small")
    return figure


def _colours(lines: Sequence[Line], looks: Looks, colours: Sequence[str]) -> list[str]:
    """A line has the colour of its conditions where that is one and no other line's, else one of its own."""
    own = [{looks[point.condition.name].colour for point in line.points} for line in lines]
    theirs = [next(iter(each)) if len(each) == 1 else GREY for each in own]
    if GREY not in theirs and len(set(theirs)) == len(theirs):
        return theirs
    return [colours[place % len(colours)] for place in range(len(lines))]


def _draw(axis: Axes, line: Line, measure: Measure, colour: str, looks: Looks) -> None:
    known = [(point, found) for point in line.points if (found := measure.of(point.condition))]
    if known:
        xs, ys = [point.x for point, _ in known], [found.value for _, found in known]
        axis.plot(xs, ys, color=colour, linewidth=1.4, label=line.name)
    if len(line.points) > _MOST_POINTS:
        _draw_together(axis, line, measure, colour)
        return
    for point, found in known:
        look = looks[point.condition.name]
        if found.low is not None and found.high is not None:
            look.mark(*axis.plot([point.x] * 2, [found.low, found.high], color=colour, linewidth=2.5, alpha=0.35))
        title = f"{measure.text(point.condition)} {measure.label}"
        look.mark(*axis.plot(point.x, found.value, "o", color=colour, markersize=4), title=title)
    for point in line.points:
        if why := failed(point.condition):
            look, at_bottom = looks[point.condition.name], axis.get_xaxis_transform()
            marks = axis.plot(point.x, 0.0, "x", color=colour, markersize=6, clip_on=False, transform=at_bottom)
            look.mark(*marks, title=why)


def _draw_together(axis: Axes, line: Line, measure: Measure, colour: str) -> None:
    """All points of a line as one artist of a kind: a drawing of many artists takes long."""
    known = [(point.x, found) for point in line.points if (found := measure.of(point.condition))]
    spans = [(x, each.low, each.high) for x, each in known if each.low is not None and each.high is not None]
    if spans:
        xs, lows, highs = zip(*spans, strict=True)
        axis.vlines(xs, lows, highs, colors=colour, linewidth=1.0, alpha=0.35)
    axis.plot([x for x, _ in known], [each.value for _, each in known], "o", color=colour, markersize=2)
    if missing := [point.x for point in line.points if failed(point.condition)]:
        at_bottom = axis.get_xaxis_transform()
        axis.plot(missing, [0.0] * len(missing), "x", color=colour, markersize=4, clip_on=False, transform=at_bottom)


def _scale(axis: Axes, sweep: Sweep) -> None:
    xs = sweep.xs
    if xs[0] > 0 and xs[-1] >= _WIDE * xs[0]:
        axis.set_xscale("log")
    ticks = xs if len(xs) <= 6 else xs[:: math.ceil(len(xs) / 6)]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _place: value_text(value)))
    axis.set_xlabel(axis_label(sweep.axis))


def _grid(grid: Grid, looks: Looks) -> Figure:
    across, down = (sorted({key[place] for key in grid.cells}) for place in (0, 1))
    found = {key: STEP.of(one) for key, one in grid.cells.items()}
    values = np.array([[one.value if (one := found.get((x, y))) else math.nan for x in across] for y in down])
    figure = Figure((WIDTH, 1.0 + _CELL * len(down)), layout="constrained")
    axis = figure.subplots()
    axis.grid(visible=False)
    colours = mpl.colormaps["Blues"]
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    for row, y in enumerate(down):
        for column, x in enumerate(across):
            condition = grid.cells.get((x, y))
            why = failed(condition) if condition else ""
            _cell(axis, (column, row), values[row, column], (low, high), colours, missing="×" if why else "")
            if condition:
                step = STEP.text(condition)
                looks[condition.name].mark(axis.patches[-1], title=f"{step} ms" if step else why)
    axis.set(xlim=(0, len(across)), ylim=(len(down), 0), xlabel=axis_label(grid.across), ylabel=axis_label(grid.down))
    axis.set_xticks(np.arange(len(across)) + 0.5, [value_text(value) for value in across])
    axis.set_yticks(np.arange(len(down)) + 0.5, [value_text(value) for value in down])
    axis.set_title(grid.name, loc="left", fontsize="small", color="#666666")
    return figure


def _cell(
    axis: Axes,
    place: tuple[int, int],
    value: float,
    span: tuple[float, float],
    colours: Colormap,
    *,
    missing: str,
) -> None:
    low, high = span
    is_number = math.isfinite(value)
    share = 0.15 + 0.75 * ((value - low) / (high - low) if high > low else 0.0) if is_number else 0.0
    face = colours(share) if is_number else "white"
    axis.add_patch(Rectangle(place, 1, 1, facecolor=face, edgecolor="white"))
    word = f"{value:,.3g}" if is_number else missing
    ink = "white" if share > 0.55 else "#1c1c1c"
    axis.text(place[0] + 0.5, place[1] + 0.5, word, ha="center", va="center", color=ink, fontsize="small")
