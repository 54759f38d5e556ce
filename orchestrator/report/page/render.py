"""The report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Final

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from dscampaign.orchestrator.formatting import count, printable
from dscampaign.orchestrator.report.compare.results import Results

from .drawing import Look
from .elements import Section

FOLDED: Final = 40
"""A table with more rows is folded."""

_CODE: Final = re.compile(r"`([^`]+)`")
_MARKDOWN: Final = re.compile(r"([\\*_{}\[\]<>#|])")


def html_page(
    results: Results, sections: Sequence[Section], figures: Mapping[str, str], looks: Sequence[Look], made_s: float
) -> str:
    """The page. Args: figures: SVG elements by name; looks: of conditions; made_s: when, in seconds since 1970."""
    shown = {name: Markup(svg) for name, svg in figures.items()}  # noqa: S704 - drawn here
    switched = [look for look in looks if any(f' data-c="{look.number}"' in svg for svg in figures.values())]
    return _render("report.html", results, sections, shown, made_s, switched)


def markdown_page(results: Results, sections: Sequence[Section], figures: Mapping[str, str], made_s: float) -> str:
    """The same in Markdown. Args: figures: paths of pictures by name, relative to the file."""
    return _render("report.md", results, sections, figures, made_s)


def _render(
    name: str,
    results: Results,
    sections: Sequence[Section],
    figures: Mapping[str, object],
    made_s: float,
    switched: Sequence[Look] = (),
) -> str:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"md": _markdown, "marked": _marked}
    shown = [
        replace(section, tables=tuple(table.without_empty_columns() for table in section.tables))
        for section in sections
    ]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(made_s))
    size = f"{count(len(results.runs), 'run')}, {count(len(results.conditions), 'condition')}"
    style, script = _source("report.css"), _source("report.js") + _source("charts.js")
    page = environment.get_template(name).render(
        title=f"Campaign {results.campaign.name}",
        subtitle=f"{size} · {made} · dscampaign",
        sections=shown,
        figures=figures,
        switched=switched,
        folded=FOLDED,
        style=Markup(style),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        style_hash=_hash(style),
        script_hash=_hash(script),
    )
    return printable(page)  # all of it: people read it in a terminal too, and a store may be anybody's


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _marked(text: str) -> Markup:
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped in the line


def _source(name: str) -> str:
    return resources.files("dscampaign.templates").joinpath(name).read_text(encoding="utf-8")


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text).replace("\n", " ")
