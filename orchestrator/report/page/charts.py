"""The charts of the page, as Vega-Lite by Altair: of a workload's conditions, or of the campaign. Pure.

Data name a condition by its number; its title and colour are looked up. `hidden` and `hot` hold the numbers of the
conditions that the legend hides and highlights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt

from dscampaign.orchestrator.campaign.titles import titles_of
from dscampaign.orchestrator.formatting import clean
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison, speed_text
from dscampaign.orchestrator.report.compare.ranking import pace
from dscampaign.orchestrator.report.compare.results import Results, WorkloadResults
from dscampaign.orchestrator.report.measure.metrics import METRICS
from dscampaign.orchestrator.report.measure.telemetry import GpuTrace

from .curves import Curves, short
from .elements import Chart
from .looks import COLOURS, GREY, REST, Looks

MOST_BARS: Final = 30
"""So many conditions have a bar; tables have the others."""

LEAST_POINTS: Final = 3
"""An axis with fewer values is no line."""

HOVER: Final = "hover"
"""Name of a layer that a picture does not need."""

MOST_LINES: Final = 6
"""So many lines have their name beside them."""

_HEIGHT: Final = 280
_BAR: Final = 22
_SHOWN: Final = "indexof(hidden, datum.c) < 0"
_BRIGHT: Final = alt.ExprRef("!length(hot) || indexof(hot, datum.c) >= 0 ? 1 : 0.1")
_DRAG: Final = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"
_WHEEL: Final = "wheel![event.ctrlKey || event.metaKey || event.shiftKey]"

Row = Mapping[str, Any]


def trade_off(one: WorkloadResults, looks: Looks) -> Chart | None:
    """Speed against memory, with intervals over repeats."""
    rows = [
        {**_named(each, looks), "memory": each.condition.value("mem_reserved_gb"), **_speed(each)}
        for each in one.comparisons
        if each.speed and each.condition.value("mem_reserved_gb") is not None
    ]
    if len(rows) < 2:
        return None
    base = _base()
    memory = alt.X("memory:Q", title="memory of a GPU (GB)" if _on_gpus(one) else "memory (GB)", scale=_near())
    points = base.mark_point(filled=True, size=150, opacity=1, stroke="white", strokeWidth=1).encode(
        memory,
        alt.Y("speed:Q", title=one.comparisons[0].speed_unit, scale=_near(), axis=alt.Axis(format="~s")),
        _colour(),
        opacity=alt.value(_BRIGHT),
        tooltip=["name:N", alt.Tooltip("says:N", title="speed"), alt.Tooltip("memory:Q", format=".1f", title="GB")],
    )
    bars = base.mark_rule(strokeWidth=2).encode(memory, _colour(), y="low:Q", y2="high:Q", opacity=_dim(0.5))
    best = _number(one.answer.chosen or one.answer.fastest, looks)
    held = [row["memory"] for row in rows]
    left = next((row["memory"] for row in rows if row["c"] == best), 0.0) <= (min(held) + max(held)) / 2
    aside: dict[str, Any] = {"align": "left", "dx": 12} if left else {"align": "right", "dx": -12}
    name = base.transform_filter(f"datum.c === {best}").mark_text(fontWeight="bold", **aside)
    chart = alt.layer(bars, points, name.encode(memory, y="speed:Q", text="name:N")).add_params(_zoom())
    return _chart("speed_memory", "Speed against memory: up and left is better", chart, looks, rows=rows)


def along(compared: Sequence[BaselineComparison], looks: Looks, axis: str, metric: str, title: str) -> Chart | None:
    """A figure along a numeric axis of the matrix, a line for each setting of the others."""
    rows, lines = [], dict[str, Mapping[str, Any]]()
    scale, kinds = METRICS[metric].scale, {each.condition.devices for each in compared if each.condition.devices}
    for each in compared:
        x, y = each.condition.params.get(axis), each.condition.value(metric)
        if is_number(x) and y is not None and math.isfinite(y):
            found = each.condition.estimate(metric)
            low, high = (y, y) if not found or found.low is None or found.high is None else (found.low, found.high)
            others = {name: value for name, value in each.condition.params.items() if name not in (axis, "label")}
            if len(kinds) > 1:
                others["on"] = ", ".join(each.condition.devices)
            line = json.dumps(others, default=str)
            lines[line] = others
            row = {"x": x, "y": y * scale, "low": low * scale, "high": high * scale, "line": line}
            rows.append({**_named(each, looks), **row, "says": METRICS[metric].text(y)})
    if len({row["x"] for row in rows}) < LEAST_POINTS:
        return None
    titles = titles_of(lines)
    xs, named = [row["x"] for row in rows], 1 < len(lines) <= MOST_LINES
    rows = [{**row, "line": titles[row["line"]]} for row in rows]
    base = _base()
    ticks = alt.Axis(values=sorted(set(xs))[:12], format="~g")
    across = alt.X("x:Q", title=axis, scale=_scale(xs, 64 if named else 16), axis=ticks)
    up = alt.Y(
        "y:Q", title=title, scale=_near(), axis=alt.Axis(format="~s") if metric == "tokens_per_s" else alt.Axis()
    )
    line = base.mark_line(color=GREY, strokeWidth=1.5).encode(across, up, detail="line:N")
    bars = base.mark_rule(strokeWidth=2).encode(across, _colour(), y="low:Q", y2="high:Q", opacity=_dim(0.6))
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        across, up, _colour(), opacity=alt.value(_BRIGHT), tooltip=["name:N", alt.Tooltip("says:N", title=title)]
    )
    layers = [line, bars, points]
    if named:
        ends = base.transform_joinaggregate(last="max(x)", groupby=["line"]).transform_filter("datum.x === datum.last")
        layers.append(ends.mark_text(align="left", dx=9, limit=120).encode(across, up, text="line:N"))
    name = f"along_{''.join(c if c.isalnum() else '_' for c in axis)}_{metric}"
    return _chart(name, f"{title} by {axis}", alt.layer(*layers).add_params(_zoom()), looks, rows=rows)


def losses(curves: Curves, looks: Looks, unit: str) -> Chart | None:
    """Smoothed losses, of repeats the mean with a band, and losses on held-out text."""
    if not curves.rows:
        return None
    y = alt.Y("loss:Q", title=f"loss{unit}", scale=alt.Scale(domain=curves.domain(), zero=False, nice=False))
    base = _by(_base())
    across = alt.X("x:Q", title="optimizer steps", axis=alt.Axis(format="~s"))
    band = base.transform_filter("isValid(datum.low)").mark_area(clip=True)
    band = band.encode(across, alt.Y("low:Q"), alt.Y2("high:Q"), _colour(), opacity=_dim(0.15), detail="c:N")
    layers = [band, _lines(base, across, y)]
    if curves.held_out:
        points = _by(_base("held_out")).mark_point(shape="diamond", filled=True, size=36, clip=True)
        said = alt.Tooltip("loss:Q", format=".4f", title="held-out loss")
        layers.append(points.encode(across, y, _colour(), opacity=_dim(0.9), tooltip=["name:N", "step:Q", said]))
    layers += _nearest(base, across, y)
    chart = alt.layer(*layers).add_params(_zoom())
    title = "Loss" + (", with held-out text as diamonds" if curves.held_out else "")
    rows = curves.points()
    return _chart("loss", title, chart, looks, curves=curves, rows=rows, held_out=curves.held_out)


def loss_differences(curves: Curves, looks: Looks, unit: str) -> Chart | None:
    """Each smoothed loss minus the baseline's at the same step."""
    low, high = curves.domain("apart")
    if high - low <= 0.0:
        return None
    y = alt.Y("apart:Q", title=f"loss minus the baseline's{unit}", scale=alt.Scale(domain=[low, high], nice=False))
    base = _by(_base().transform_filter("isValid(datum.apart)"))
    across = alt.X("x:Q", title="optimizer steps", axis=alt.Axis(format="~s"))
    chart = alt.layer(_lines(base, across, y), *_nearest(base, across, y)).add_params(_zoom())
    title = "Loss minus the baseline's: below 0 is better"
    return _chart("loss_difference", title, chart, looks, curves=curves, rows=curves.points())


def speeds(one: WorkloadResults, looks: Looks) -> Chart | None:
    """Speed of each condition: the median, its interval, and every repeat."""
    timed = sorted((each for each in one.comparisons if each.speed), key=pace, reverse=True)[:MOST_BARS]
    if not timed:
        return None
    rows = [{**_named(each, looks), **_speed(each)} for each in timed]
    repeats = [{**_named(each, looks), "speed": speed} for each in timed for speed in each.speeds]
    unit = one.comparisons[0].speed_unit
    title = f"Speed, {unit}{_left_out(one, timed)}"
    return _chart("speed", title, _bars(unit), looks, height=None, rows=rows, repeats=repeats)


def memories(one: WorkloadResults, looks: Looks) -> Chart | None:
    """Memory of each condition: reserved as a bar, allocated as a tick, and a line for the usable memory."""
    metrics = {"reserved": "mem_reserved_gb", "allocated": "mem_allocated_gb"}
    held = [each for each in one.comparisons if each.condition.value("mem_reserved_gb") is not None]
    held = sorted(held, key=lambda each: each.condition.value("mem_reserved_gb") or 0.0)[:MOST_BARS]
    if not held:
        return None
    rows = []
    for each in held:
        found = {kind: each.condition.value(name) for kind, name in metrics.items()}
        says = {f"{kind}_says": each.condition.text(name) for kind, name in metrics.items()}
        rows.append({**_named(each, looks), **found, **says})
    base = _base()
    y = _names()
    bars = base.mark_bar(height={"band": 0.62}, cornerRadiusEnd=2).encode(
        alt.X("reserved:Q", title="GB, highest of any rank"), y, _colour(), opacity=_dim(0.85),
        tooltip=["name:N", alt.Tooltip("reserved_says:N", title="reserved"),
                 alt.Tooltip("allocated_says:N", title="allocated")],
    )  # fmt: skip
    ticks = base.mark_tick(thickness=2, height={"band": 0.8}, color="#5f6368").encode(x="allocated:Q", y=y)
    layers: list[Any] = [bars, ticks]
    if usable := max((each.condition.value("mem_usable_gb") or 0.0 for each in held), default=0.0):
        line = _of("usable")
        layers.append(line.mark_rule(strokeDash=[4, 4], color="#D55E00", strokeWidth=1.5).encode(x="usable:Q"))
        text = line.mark_text(align="right", dx=-5, dy=7, baseline="top", color="#D55E00")
        layers.append(text.encode(x="usable:Q", y=alt.value(0), text="says:N"))
    title = f"Memory: reserved, with allocated as a tick{_left_out(one, held)}"
    limit = [{"usable": usable, "says": f"usable: {usable:.0f} GB"}]
    return _chart("memory", title, alt.layer(*layers), looks, height=None, rows=rows, usable=limit)


def hours(results: Results, parts: Sequence[tuple[str, float]]) -> Chart:
    """The share of the GPUs' time by use, as one bar."""
    total = results.cost.total
    rows = [
        {"part": f"{name} {value / total:.0%}", "hours": value / 3600, "place": place}
        for place, (name, value) in enumerate(parts)
    ]
    paints = ["#3B6FB6", "#8FB3E0", "#C9D6E6", "#A99BD1", "#C4A6C9", "#B9BDC4"]
    lost = ["#D55E00", "#E69F00", "#AA2266", "#886644", "#CC79A7"]
    useful = len(parts) - len(results.cost.lost)
    colours = [*paints[:useful], *(lost[place % len(lost)] for place in range(len(results.cost.lost)))]
    scale = alt.Scale(domain=[row["part"] for row in rows], range=colours)
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=260, symbolType="square")
    bar = _of("rows").mark_bar(height=34)
    chart = bar.encode(
        alt.X("hours:Q", title=results.hour_unit, stack="zero", scale=alt.Scale(nice=False)),
        alt.Color("part:N", scale=scale, legend=legend, sort=None),
        order="place:Q",
        tooltip=["part:N", alt.Tooltip("hours:Q", format=".3g", title=results.hour_unit)],
    )
    return _chart("goodput", f"{results.hour_unit} of all attempts", chart, {}, height=48, rows=rows)


def gpus(traces: Sequence[GpuTrace], looks: Looks, runs: Mapping[str, str]) -> list[Chart]:
    """Power and temperature of a few runs' GPUs over time; `runs` has the condition of each run."""
    rows: list[Row] = []
    for place, trace in enumerate(traces):
        ends = {"c": looks[runs[trace.run]].number, "gpu": place}
        columns = (trace.seconds, trace.power_w, trace.power_avg_w, trace.temperature_c)
        rows += [
            {**ends, **dict(zip(("s", "power", "average", "heat"), map(short, row), strict=True))}
            for row in zip(*columns, strict=True)
        ]
    base = _base()
    base = base.transform_calculate(gpu_name="gpus[datum.gpu]")
    across = alt.X("s:Q", title="seconds since the first sample", axis=alt.Axis(format="~s"))

    def line(field: str, title: str, width: float, opacity: float) -> alt.Chart:
        y = alt.Y(f"{field}:Q", title=title, scale=_near())
        said = [alt.Tooltip("gpu_name:N", title="GPU"), alt.Tooltip(f"{field}:Q", title=title)]
        return base.mark_line(strokeWidth=width).encode(
            across, y, _colour(), detail="gpu:N", opacity=_dim(opacity), tooltip=said
        )

    power = alt.layer(line("power", "W", 0.7, 0.5), line("average", "W", 1.8, 1.0)).add_params(_zoom())
    heat = line("heat", "°C", 1.8, 1.0).add_params(_zoom())
    names = [trace.name for trace in traces]
    return [
        _chart("power", "Power: thin at a moment, thick over one second", power, looks, gpus=names, rows=rows),
        _chart("temperature", "Temperature", heat, looks, gpus=names, rows=rows),
    ]


def is_number(value: object) -> bool:
    """Whether a value has a place on a numeric axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _chart(
    name: str, title: str, chart: Any, looks: Looks, *, height: int | None = _HEIGHT,
    curves: Curves | None = None, gpus: Sequence[str] = (), **data: Sequence[Row],
) -> Chart:  # fmt: skip
    """Return the chart with its data, and the values that its expressions look up."""
    shown = chart.properties(width="container", height=height or alt.Step(_BAR))
    spec = shown.to_dict(validate=False)
    by_condition = {"titles": [one.title for one in looks.values()], "colours": [one.colour for one in looks.values()]}
    params = {"hidden": [], "hot": [], "by": "step", **by_condition, "gpus": list(gpus)}
    params |= {"tokens": curves.tokens, "seconds": curves.seconds} if curves else {}
    spec["params"] = [{"name": key, "value": value} for key, value in params.items()] + spec.get("params", [])
    spec["datasets"] = {key: list(rows) for key, rows in data.items()}
    return Chart(name, clean(title), _cleaned(spec), curves.across if curves else {})


def _cleaned(value: Any) -> Any:
    """The same without control characters in its texts: vl_convert aborts the process at one."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list | tuple) else value


def _base(data: str = "rows") -> alt.Chart:
    """A chart of the conditions in a data set; `k` is the number of the colour."""
    return _of(data).transform_filter(_SHOWN).transform_calculate(name="titles[datum.c]", k="colours[datum.c]")


def _of(data: str) -> alt.Chart:
    """A chart of a data set by its name: Altair copies data with each layer."""
    return alt.Chart(alt.NamedData(name=data))


def _by(chart: alt.Chart) -> alt.Chart:
    """Add the place on the chosen axis; `tokens` and `seconds` hold those of a step by condition."""
    by_time = "by === 'seconds' ? datum.step * seconds[datum.c] : datum.step"
    return chart.transform_calculate(x=f"by === 'tokens' ? datum.step * tokens[datum.c] : {by_time}")


def _lines(base: alt.Chart, across: alt.X, y: alt.Y) -> alt.Chart:
    width = alt.value(alt.ExprRef(f"datum.k === {REST} ? 1 : 2"))
    return base.mark_line(clip=True).encode(across, y, _colour(), detail="c:N", opacity=_dim(0.9), strokeWidth=width)


def _nearest(base: alt.Chart, across: alt.X, y: alt.Y) -> list[alt.Chart]:
    near = alt.selection_point(name="near", on="pointermove", nearest=True, fields=["c", "step"], empty=False)
    said = [
        "name:N",
        alt.Tooltip("step:Q", format=",.0f"),
        alt.Tooltip("loss:Q", format=".4f"),
        alt.Tooltip("apart:Q", format="+.4f", title="minus baseline"),
    ]
    points = base.mark_point(filled=True, size=70, clip=True).add_params(near).properties(name=HOVER)
    shown = alt.condition(near, alt.value(1), alt.value(0))
    return [points.encode(across, y, _colour(), opacity=shown, tooltip=said)]


def _bars(unit: str) -> Any:
    base, y = _base(), _names()
    bars = base.mark_bar(height={"band": 0.62}, cornerRadiusEnd=2).encode(
        alt.X("speed:Q", title=f"{unit}; points are repeats", axis=alt.Axis(format="~s")), y, _colour(),
        opacity=_dim(0.85), tooltip=["name:N", alt.Tooltip("says:N", title=unit)],
    )  # fmt: skip
    points = _base("repeats").mark_point(filled=True, size=22, color="#3c4043", stroke="white", strokeWidth=0.6)
    return alt.layer(bars, points.encode(x="speed:Q", y=y))


def _names() -> alt.Y:
    axis = alt.Axis(labelLimit=170, domain=False, ticks=False, grid=False)
    return alt.Y("name:N", sort=None, title=None, axis=axis)


def _colour() -> alt.Color:
    paints = [*COLOURS, GREY]
    return alt.Color("k:N", scale=alt.Scale(domain=list(range(len(paints))), range=paints), legend=None)


def _dim(opacity: float) -> Any:
    return alt.value(alt.ExprRef(f"{opacity} * ({_BRIGHT.expr})"))


def _zoom() -> alt.Parameter:
    return alt.selection_interval(name="zoom", bind="scales", translate=_DRAG, zoom=_WHEEL)


def _near() -> alt.Scale:
    """A scale of the values alone: differences are the matter, and points do not need 0."""
    return alt.Scale(zero=False, nice=True, padding=12)


def _scale(values: Iterable[float], padding: int) -> alt.Scale:
    """A logarithmic scale, if the values are positive and far apart."""
    known = list(values)
    wide = min(known) > 0 and max(known) >= 8 * min(known)
    return alt.Scale(type="log", padding=padding, nice=False) if wide else alt.Scale(zero=False, padding=padding)


def _named(each: BaselineComparison, looks: Looks) -> dict[str, Any]:
    return {"c": looks[each.condition.name].number}


def _speed(each: BaselineComparison) -> dict[str, Any]:
    speed = each.speed
    low, high = (speed.low, speed.high) if speed and speed.low is not None else (None, None)
    return {"speed": speed.value if speed else None, "low": low, "high": high, "says": speed_text(each)}


def _left_out(one: WorkloadResults, shown: Sequence[BaselineComparison]) -> str:
    every = len(one.comparisons)
    return f" ({len(shown)} of {every} conditions)" if len(shown) == MOST_BARS < every else ""


def _on_gpus(one: WorkloadResults) -> bool:
    return any(run.on_gpus for each in one.comparisons for run in each.condition.runs)


def _number(condition: Any, looks: Looks) -> int:
    return looks[condition.name].number if condition else -1
