"""The page of a campaign, or of all campaigns: one document with its style, its scripts and its first data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from dscampaign.orchestrator.report.page.looks import COLOURS, GREY
from dscampaign.orchestrator.report.page.render import page_from, template

from .documents import curve_specs


class LivePage(NamedTuple):
    """A page, and the content security policy that it needs."""

    html: str
    policy: str


@cache
def _parts() -> tuple[str, str]:
    colours = "".join(f".spark .k{n} {{ stroke: {paint}; }}" for n, paint in enumerate((*COLOURS, GREY)))
    return f"{template('report.css')}{template('live.css')}{colours}", template("live.js")


def page_of(title: str, data: Mapping[str, Any]) -> LivePage:
    """Return the page; for `data` see `live.js`. With `live` it follows the server, else it has all that it shows."""
    connects = "connect-src 'self'; " if data["live"] else ""
    values: dict[str, Any] = {"title": title, "data": {**data, "specs": curve_specs()}}
    return LivePage(*page_from("live.html", *_parts(), connects, **values))
