"""The charts of the page, as Vega-Lite by Altair: of a workload's conditions, or of the campaign. Pure.

Data name a condition by its number `c`; its title and its group, which has the colour, are looked up. `hidden` and
`hot` hold the numbers of the conditions that the legend hides and highlights. Channels are objects of their classes:
Altair takes 10 ms to find the class of a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt

from dscampaign.orchestrator.campaign.titles import titles_of
from dscampaign.orchestrator.formatting import clean, short_number, words
from dscampaign.orchestrator.report.compare.baseline import BaselineComparison
from dscampaign.orchestrator.report.compare.conditions import key_of
from dscampaign.orchestrator.report.compare.results import WorkloadResults
from dscampaign.orchestrator.report.compare.statistics import Estimate, Standing
from dscampaign.orchestrator.report.compare.wording import interval
from dscampaign.orchestrator.report.measure.hardware import number
from dscampaign.orchestrator.report.measure.metrics import METRICS

from .curves import Curves
from .elements import Chart
from .looks import GREY, OTHERS, Looks

HOVER: Final = "hover"
"""Name of a layer that a picture does not need."""

_DASHES: Final = ([1, 0], [8, 3], [2, 2], [10, 3, 2, 3], [5, 2], [12, 5], [6, 2, 2, 2], [3, 4])
"""Of the curves: of two that coincide, both are seen."""
_NAME: Final = alt.Tooltip("name:N")
_LOW, _HIGH, _OF_CONDITION = alt.Y("low:Q"), alt.Y2("high:Q"), alt.Detail("c:N")

Row = Mapping[str, Any]


def trade_off(one: WorkloadResults, looks: Looks) -> Chart | None:
    """Speed against memory, with intervals over repeats."""
    measured = [each for each in one.comparisons if each.speed and each.condition.value("mem_reserved_gb") is not None]
    if len(measured) < 2:
        return None
    measured.sort(key=lambda each: looks[each.condition.name].group != OTHERS)  # the colours above the grey
    verdicts = {row.condition.name: row.verdict for row in one.answer.rows}
    rows: list[dict[str, Any]] = [
        {
            "c": looks[each.condition.name].number,
            "value": speed.value,
            **dict(zip(("low", "high"), speed.ends or (), strict=False)),
            "says": f"{short_number(speed.value)}{interval(speed, short_number)} {each.speed_unit}",
            "memory": each.condition.value("mem_reserved_gb"),
            "verdict": words(verdicts[each.condition.name]),
        }
        for each in measured
        if (speed := each.speed)
    ]
    on_gpus = any(run.on_gpus for each in measured for run in each.condition.runs)
    across = alt.X("memory:Q", title="memory of a GPU (GB)" if on_gpus else "memory (GB)", scale=_near())
    up = alt.Y("value:Q", title=one.comparisons[0].speed_unit, scale=_near(), axis=alt.Axis(format="~s"))
    tooltip = [_NAME, alt.Tooltip("says:N", title="speed"), alt.Tooltip("memory:Q", format=".1f", title="GB")]
    tooltip.append(alt.Tooltip("verdict:N"))
    out = any(row["verdict"] == Standing.OUT for row in rows)
    shape = alt.Shape("out:N", scale=alt.Scale(domain=[False, True], range=["circle", "cross"]), legend=None)
    base, colour = _base(), _colour(rows, looks)
    bars = base.mark_rule(strokeWidth=2).encode(across, colour, _LOW, _HIGH, opacity=_dim(0.5))
    points = base.mark_point(filled=True, size=150, stroke="white", strokeWidth=1)
    points = points.transform_calculate(out=f"datum.verdict === '{Standing.OUT}'")
    points = points.encode(across, up, colour, shape, opacity=_dim(1), tooltip=tooltip)
    best = one.answer.chosen or one.answer.fastest
    number = looks[best.name].number if best else -1
    held = [row["memory"] for row in rows]
    is_left = best is not None and (best.value("mem_reserved_gb") or 0) <= (min(held) + max(held)) / 2
    aside: dict[str, Any] = {"align": "left", "dx": 12} if is_left else {"align": "right", "dx": -12}
    name = base.transform_filter(f"datum.c === {number}").mark_text(fontWeight="bold", **aside)
    chart = alt.layer(bars, points, name.encode(across, up, alt.Text("name:N"))).add_params(_zoom())
    title = f"Speed against memory: up and left is better{'; crosses are out' if out else ''}"
    return chart_of("speed_memory", title, chart, looks, {"rows": rows})


def along(compared: Sequence[BaselineComparison], looks: Looks, axis: str, metric: str, title: str) -> Chart | None:
    """A figure along a numeric axis of the matrix, a line for each setting of the others."""
    rows: list[dict[str, Any]] = []
    lines: dict[str, Mapping[str, Any]] = {}
    figure, kinds = METRICS[metric], {tuple(each.condition.devices) for each in compared if each.condition.devices}
    for one in (each.condition for each in compared):
        x = number(one.params.get(axis))
        estimate = one.summary(metric)
        if x is not None and isinstance(estimate, Estimate) and math.isfinite(estimate.value):
            others = {name: value for name, value in one.params.items() if name not in (axis, "label")}
            others |= {"on": ", ".join(one.devices)} if len(kinds) > 1 else {}
            line = key_of(others)
            lines[line] = others
            ends = zip(("low", "high"), estimate.ends or (), strict=False)
            row = {"y": estimate.value * figure.scale, **{name: end * figure.scale for name, end in ends}}
            says = figure.text(estimate.value)
            rows.append({"c": looks[one.name].number, "x": x, **row, "line": line, "says": says})
    xs = sorted({row["x"] for row in rows})
    if len(xs) < 3:
        return None
    titles = titles_of(lines)
    rows = [{**row, "line": titles[row["line"]]} for row in rows]
    legend = alt.Legend(title=None, orient="top", symbolStrokeColor=GREY) if 1 < len(lines) <= 6 else None
    far_apart = xs[0] > 0 and xs[-1] >= 8 * xs[0]
    scale = alt.Scale(type="log", padding=16, nice=False) if far_apart else alt.Scale(zero=False, padding=16)
    across = alt.X("x:Q", title=axis, scale=scale, axis=alt.Axis(values=xs[:12], format="~g"))
    up = alt.Y("y:Q", title=title, scale=_near(), axis=alt.Axis(format="~s" if metric == "tokens_per_s" else "~g"))
    dash = alt.StrokeDash("line:N", sort=None, legend=legend) if legend else alt.Detail("line:N")
    base, colour = _base(), _colour(rows, looks, legend=None)
    line = base.mark_line(color=GREY, strokeWidth=1.5).encode(across, up, dash)
    bars = base.mark_rule(strokeWidth=2).encode(across, colour, _LOW, _HIGH, opacity=_dim(0.6))
    points = base.mark_point(filled=True, size=110).encode(
        across, up, colour, opacity=_dim(1), tooltip=[_NAME, alt.Tooltip("says:N", title=title)]
    )
    name = f"along_{''.join(c if c.isalnum() else '_' for c in axis)}_{metric}"
    return chart_of(
        name, f"{title} by {axis}", alt.layer(line, bars, points).add_params(_zoom()), looks, {"rows": rows}
    )


def losses(curves: Curves, looks: Looks, unit: str) -> Chart | None:
    """Smoothed losses, of repeats the mean with a band, and losses on held-out text."""
    if not curves.rows:
        return None
    band = _along_steps().transform_filter("isValid(datum.low)").mark_area(clip=True)
    layers = [band.encode(_LOW, _HIGH, _colour(curves.rows, looks), _OF_CONDITION, opacity=_dim(0.15))]
    layers += _lines(curves, looks, "loss", f"loss{unit}")
    if curves.held_out:
        points = _along_steps("held_out").mark_point(shape="diamond", filled=True, size=36, clip=True)
        tooltip = [_NAME, alt.Tooltip("step:Q"), alt.Tooltip("loss:Q", format=".4f", title="held-out loss")]
        colour = _colour(curves.rows, looks)
        layers.insert(-1, points.encode(alt.Y("loss:Q"), colour, opacity=_dim(0.9), tooltip=tooltip))
    title = "Loss" + (", with held-out text as diamonds" if curves.held_out else "")
    return _of_curves("loss", title, layers, looks, curves)


def paces(curves: Curves, looks: Looks) -> Chart:
    """Speeds along the steps: `speed` of the curves' rows, in tokens per second."""
    return _of_curves("pace", "Speed", _lines(curves, looks, "speed", "tokens/s", ",.0f"), looks, curves)


def _of_curves(name: str, title: str, layers: Sequence[Any], looks: Looks, curves: Curves) -> Chart:
    chart, data = alt.layer(*layers).add_params(_zoom()), {"rows": curves.rows, "held_out": curves.held_out}
    across = {"step": "optimizer steps", "minutes": "minutes of training steps"} if curves.minutes else {}
    return chart_of(name, title, chart, looks, data, across=across, minutes=curves.minutes)


def _lines(curves: Curves, looks: Looks, field: str, title: str, form: str = ".4f") -> list[Any]:
    """Return the curves, and a layer with the point next to the pointer."""
    low, high = curves.domain(field)
    y = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(domain=[low, high], zero=False, nice=False))
    base, colour = _along_steps().transform_filter(f"isValid(datum.{field})"), _colour(curves.rows, looks)
    groups = list(_paints(curves.rows, looks))
    dashes = alt.Scale(domain=groups, range=[_DASHES[place % len(_DASHES)] for place in range(len(groups))])
    width = alt.StrokeWidthValue(alt.ExprRef(f"datum.group === '{OTHERS}' ? 1 : 2"))
    lines = base.mark_line(clip=True).encode(
        y, colour, alt.StrokeDash("group:N", title=None, scale=dashes), _OF_CONDITION, width, opacity=_dim(0.9)
    )  # fmt: skip
    near = alt.selection_point(name="near", on="pointermove", nearest=True, fields=["c", "step"], empty=False)
    tooltip = [_NAME, alt.Tooltip("step:Q", format=",.0f"), alt.Tooltip(f"{field}:Q", format=form)]
    points = base.mark_point(filled=True, size=70, clip=True).add_params(near).properties(name=HOVER)
    shown = alt.OpacityValue(0, condition={"param": "near", "empty": False, "value": 1})
    return [lines, points.encode(y, colour, opacity=shown, tooltip=tooltip)]


def chart_of(
    name: str, title: str, chart: Any, looks: Looks, data: Mapping[str, Sequence[Row]], *, height: Any = 280,
    across: Mapping[str, str] = {}, **params: Any,
) -> Chart:  # fmt: skip
    """Return the chart with its data, and the values that its expressions look up."""
    spec = chart.properties(width="container", height=height).to_dict(validate=False)
    names = {"titles": [look.title for look in looks.values()], "groups": [look.group for look in looks.values()]}
    values = {"hidden": [], "hot": [], "by": "step", **names, **params}
    spec["params"] = [{"name": key, "value": value} for key, value in values.items()] + spec.get("params", [])
    spec["datasets"] = {key: list(rows) for key, rows in data.items()}
    return Chart(name, clean(title), _cleaned(spec), across)


def _cleaned(value: Any) -> Any:
    """The same without control characters in its texts: vl_convert aborts the process at them."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {key: _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list | tuple) else value


def data_of(data: str) -> alt.Chart:
    """A chart of a data set by its name: Altair copies data with each layer."""
    return alt.Chart(alt.NamedData(name=data))


def _base(data: str = "rows") -> alt.Chart:
    """A chart of the conditions in a data set that the legend does not hide."""
    shown = data_of(data).transform_filter("indexof(hidden, datum.c) < 0")
    return shown.transform_calculate(name="titles[datum.c]", group="groups[datum.c]")


def _along_steps(data: str = "rows") -> alt.Chart:
    """The same along the chosen axis; `minutes` holds the minutes of a step by condition."""
    base = _base(data).transform_calculate(x="datum.step * (by === 'minutes' ? minutes[datum.c] : 1)")
    room = alt.Scale(nice=False, padding=6)  # the last held-out loss lies at the very end
    return base.encode(alt.X("x:Q", title="optimizer steps", axis=alt.Axis(format="~s"), scale=room))


def _colour(rows: Iterable[Row], looks: Looks, **legend: None) -> alt.Color:
    """The colours of the conditions in a data set; a picture has their legend, a page its own."""
    paints = _paints(rows, looks)
    scale = alt.Scale(domain=list(paints), range=list(paints.values()))
    return alt.Color("group:N", title=None, scale=scale, **legend)


def _paints(rows: Iterable[Row], looks: Looks) -> dict[str, str]:
    drawn = {row["c"] for row in rows}
    return {look.group: look.paint for look in looks.values() if look.number in drawn}


def _dim(opacity: float) -> Any:
    return alt.OpacityValue(alt.ExprRef(f"{opacity} * (!length(hot) || indexof(hot, datum.c) >= 0 ? 1 : 0.1)"))


def _zoom() -> alt.Parameter:
    drag = "[pointerdown[event.pointerType === 'mouse'], window:pointerup] > window:pointermove!"
    wheel = "wheel![event.ctrlKey || event.metaKey || event.shiftKey]"
    return alt.selection_interval(name="zoom", bind="scales", translate=drag, zoom=wheel)


def _near() -> alt.Scale:
    """A scale of the values alone: differences are the matter, and points do not need 0."""
    return alt.Scale(zero=False, nice=True, padding=12)
