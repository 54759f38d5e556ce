"""The page of a campaign, or of all campaigns: one document with its style, its scripts and its first data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from dscampaign.orchestrator.formatting import printable
from dscampaign.orchestrator.report.page.bundle import vega_bundle
from dscampaign.orchestrator.report.page.looks import COLOURS, GREY
from dscampaign.orchestrator.report.page.render import policy_hash, template, templates

from .documents import curve_specs

_SCRIPTS: Final = "<!-- scripts -->"


class LivePage(NamedTuple):
    """A page, and the content security policy that it needs."""

    html: str
    policy: str


@cache
def _parts() -> tuple[str, str, str]:
    colours = "".join(f".spark .k{n} {{ stroke: {paint}; }}" for n, paint in enumerate((*COLOURS, GREY)))
    return f"{template('report.css')}{template('live.css')}{colours}", vega_bundle(), template("live.js")


def page_of(title: str, data: Mapping[str, Any]) -> LivePage:
    """Return the page.

    Args:
        title: the campaign's name.
        data: see `live.js`. With `live` the page follows the server; else it has everything that it shows.
    """
    style, bundle, script = _parts()
    scripts = " ".join(f"'{policy_hash(one)}'" for one in (bundle, script))
    connects = "connect-src 'self'; " if data["live"] else ""
    policy = f"default-src 'none'; style-src '{policy_hash(style)}'; script-src {scripts}; {connects}"
    policy += "base-uri 'none'; form-action 'none'"
    html = templates().get_template("live.html").render(
        title=title, style=style, policy=policy, data={**data, "specs": curve_specs()}
    )  # fmt: skip
    return LivePage(printable(html).replace(_SCRIPTS, f"<script>{bundle}</script>\n<script>{script}</script>"), policy)
