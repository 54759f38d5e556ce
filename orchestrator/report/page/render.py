"""The report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import resources
from importlib.metadata import version
from itertools import chain
from typing import Any, Final

import vl_convert
from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape

from dscampaign.files.atomic_files import write_atomically
from dscampaign.files.ownership import Distrusted, trusted_bytes
from dscampaign.files.private_files import make_private
from dscampaign.orchestrator.campaign.selection import RunCounts
from dscampaign.orchestrator.failures.groups import alike
from dscampaign.orchestrator.formatting import count, printable
from dscampaign.orchestrator.report.compare.results import Results
from dscampaign.orchestrator.user_files import cache_folder

from .charts import HOVER
from .elements import Chart, Section
from .looks import OTHERS, Looks

_SCRIPTS: Final = "<!-- scripts -->"
"""Replaced last: a page is cleaned of control characters, a library is not."""

_CLIP: Final = re.compile(r'(?<=id=")clip\d+|(?<=url\(#)clip\d+')
_MARKDOWN: Final = re.compile(r"([\\*_{}\[\]<>#|])")


def pictures_of(charts: Sequence[Chart]) -> dict[str, str]:
    """Return each chart as SVG by its name, with a legend and on white."""
    svgs = {}
    for chart in charts:
        svg = vl_convert.vegalite_to_svg(json.dumps(_static(chart)))
        clips = [*dict.fromkeys(_CLIP.findall(svg))]  # which Vega counts over all pictures of a process
        svgs[chart.name] = _CLIP.sub(lambda clip, own=clips: f"clip{own.index(clip[0])}", svg)  # type: ignore[misc]
    return svgs


def _static(chart: Chart) -> dict[str, Any]:
    spec = dict(chart.spec)
    spec["params"] = [param for param in spec["params"] if "select" not in param]
    if "layer" in spec:
        spec["layer"] = [layer for layer in spec["layer"] if layer.get("name") != HOVER]
    return {**spec, "width": 640, "config": {**CONFIG, "background": "white"}}


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
    ordered = sorted(looks.values(), key=lambda look: look.group == OTHERS)
    html, _ = page_from(
        "report.html",
        template("report.css"),
        template("report.js"),
        **_values(results, sections, made_s),
        legend=alike(ordered, lambda look: look.group),
        charts={
            chart.name: {
                **chart.spec,
                "config": config,
                "datasets": {  # by column, which is shorter
                    name: {key: [row.get(key) for row in rows] for key in dict.fromkeys(chain(*rows))}
                    for name, rows in chart.spec["datasets"].items()
                },
            }
            for section in sections
            for chart in section.charts
        },
        rows_at_first=12,
    )
    return html


def markdown_page(results: Results, sections: Sequence[Section], figures: Mapping[str, str], made_s: float) -> str:
    """Return the same in Markdown. Args: figures: paths of pictures by name, relative to the file."""
    values = _values(results, sections, made_s)
    return printable(_environment().get_template("report.md").render(**values, figures=figures))


def _values(results: Results, sections: Sequence[Section], made_s: float) -> dict[str, Any]:
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made_s))
    devices = list(dict.fromkeys(name for run in results.runs for name in run.device_names))
    counts = RunCounts.of(results.runs)
    runs = f"{counts.completed} of {count(counts.total, 'run')} completed{counts.note}"
    facts = " · ".join([runs, count(len(results.conditions), "condition"), *devices[:2], date])
    return {"title": results.campaign.name, "facts": facts, "first": sections[0], "sections": sections[1:]}


def page_from(name: str, style: str, script: str, connects: str = "", **values: Any) -> tuple[str, str]:
    """Return the page of a template, with its style, its script and the library of charts; and the policy it needs.

    Args:
        connects: a directive of the content security policy.
        values: of the template, which escapes them all.
    """
    bundle = vega_bundle()
    scripts = " ".join(f"'{_policy_hash(one)}'" for one in (bundle, script))
    policy = f"default-src 'none'; style-src '{_policy_hash(style)}'; script-src {scripts}; {connects}"
    policy += "base-uri 'none'; form-action 'none'"
    html = _environment().get_template(name).render(style=style, policy=policy, **values)
    # People read a page in a terminal too, and a store may be anybody's: all of it is printable but for the library.
    return printable(html).replace(_SCRIPTS, f"<script>{bundle}</script>\n<script>{script}</script>"), policy


def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(template),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": lambda text: _MARKDOWN.sub(r"\\\1", text).replace("\n", " ")}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment


def _policy_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def template(name: str) -> str:
    """Return a file of the templates."""
    return resources.files("dscampaign.templates").joinpath(name).read_text(encoding="utf-8")


def vega_bundle() -> str:
    """Return Vega-Embed, Vega-Lite and Vega from the user's cache if it is trusted; else make it, in seconds."""
    file = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, ValueError, Distrusted):
        return trusted_bytes(file).decode()
    bundle: str = vl_convert.javascript_bundle()  # type: ignore[call-arg] # the stub requires an optional argument
    with suppress(OSError):
        make_private(file.parent)
        write_atomically(file, bundle, closed=True)
    return bundle
