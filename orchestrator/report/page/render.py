"""The report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import vl_convert
from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

from dscampaign.orchestrator.campaign.selection import RunCounts
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import count, printable
from dscampaign.orchestrator.report.compare.results import Results

from .bundle import vega_bundle
from .charts import HOVER
from .elements import Chart, Section
from .looks import OTHERS, Looks

ROWS_AT_FIRST: Final = 12

_SCRIPTS: Final = "<!-- scripts -->"
"""Replaced last: a page is cleaned of control characters, a library is not."""

_CLIP: Final = re.compile(r'(?<=id=")clip\d+|(?<=url\(#)clip\d+')
_MARKDOWN: Final = re.compile(r"([\\*_{}\[\]<>#|])")
_STATIC_WIDTH: Final = 640


def pictures_of(charts: Sequence[Chart]) -> dict[str, str]:
    """Return each chart as SVG by its name, with a legend and on white."""
    return {chart.name: _numbered(vl_convert.vegalite_to_svg(json.dumps(_static(chart)))) for chart in charts}


def _numbered(svg: str) -> str:
    """The picture with clips numbered from 0: Vega counts them over all pictures of a process."""
    numbers = {name: place for place, name in enumerate(dict.fromkeys(_CLIP.findall(svg)))}
    return _CLIP.sub(lambda match: f"clip{numbers[match[0]]}", svg)


def _static(chart: Chart) -> dict[str, Any]:
    """The specification of a picture: without what a pointer needs."""
    spec = dict(chart.spec)
    spec["params"] = [param for param in spec["params"] if "select" not in param]
    if "layer" in spec:
        spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
    return {**spec, "width": _STATIC_WIDTH, "config": {**CONFIG, "background": "white"}}


CONFIG: Final[Mapping[str, Any]] = {
    "aria": False,
    "background": None,
    "font": "system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domain": False, "ticks": False, "gridColor": "#e4e6e9", "labelColor": "#5f6368", "titleColor": "#5f6368",
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "labelPadding": 6, "tickCount": 6,
    },
    "legend": {"labelFontSize": 11, "labelColor": "#3c4043", "orient": "bottom", "columns": 3, "labelLimit": 200},
    "text": {"fontSize": 11},
}  # fmt: skip
"""The look of all charts; the style sheet of the page paints text and grid for its theme."""


def html_page(results: Results, sections: Sequence[Section], looks: Looks, made_s: float) -> str:
    """Return the page, whose first section is the first screen; `made_s` is now, in seconds since 1970."""
    config = {**CONFIG, "legend": {"disable": True}}  # chips above the sections filter all charts
    style, script, bundle = template("report.css"), template("report.js"), vega_bundle()
    ordered = sorted(looks.values(), key=lambda look: look.group == OTHERS)
    page = _render(
        "report.html",
        results,
        sections,
        made_s,
        legend=alike(ordered, lambda look: look.group),
        charts={
            chart.name: {**chart.spec, "config": config, "datasets": _columns(chart)}
            for section in sections
            for chart in section.charts
        },
        style=style,
        style_hash=policy_hash(style),
        script_hashes=[policy_hash(bundle), policy_hash(script)],
        rows_at_first=ROWS_AT_FIRST,
    )
    return page.replace(_SCRIPTS, f"<script>{bundle}</script>\n<script>{script}</script>")


def markdown_page(results: Results, sections: Sequence[Section], figures: Mapping[str, str], made_s: float) -> str:
    """Return the same in Markdown. Args: figures: paths of pictures by name, relative to the file."""
    return _render("report.md", results, sections, made_s, figures=figures)


def _render(name: str, results: Results, sections: Sequence[Section], made_s: float, **more: Any) -> str:
    environment = templates()
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made_s))
    devices = list(dict.fromkeys(name for run in results.runs for name in run.device_names))
    counts = RunCounts.of(results.runs)
    runs = f"{counts.completed} of {count(counts.total, 'run')} completed{counts.note}"
    facts = [runs, count(len(results.conditions), "condition"), *devices[:2], date]
    page = environment.get_template(name).render(
        title=results.campaign.name, facts=" · ".join(facts), first=sections[0], sections=sections[1:], **more
    )
    return printable(page)  # all of it: people read it in a terminal too, and a store may be anybody's


def templates() -> Environment:
    """Return the environment that reads the templates and escapes everything in those of HTML."""
    environment = Environment(
        loader=FunctionLoader(template),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": _markdown}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _columns(chart: Chart) -> dict[str, dict[str, list[Any]]]:
    """The data of a chart by column, which is shorter."""
    return {
        name: {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
        for name, rows in chart.spec["datasets"].items()
    }


def policy_hash(text: str) -> str:
    """Return the hash by which a content security policy allows a script or a style sheet."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def template(name: str) -> str:
    """Return a file of the templates."""
    return resources.files("dscampaign.templates").joinpath(name).read_text(encoding="utf-8")


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text).replace("\n", " ")
