"""`make docs`: the site has all pages, loads nothing from the network, and can be searched without a server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dscampaign.tests.support import REPOSITORY
from dscampaign.tests.support.browser import Browser, browser, until

SEARCH = """(() => {
    const field = document.querySelector(".md-search__input");
    field.focus();
    field.value = "pgbouncer";
    for (const name of ["keyup", "input"]) field.dispatchEvent(new Event(name, { bubbles: true }));
    return document.querySelector(".md-search-result__item")?.textContent;
})()"""


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path / "profile") as found:
        yield found


@pytest.mark.nightly
def test_the_site_needs_neither_network_nor_server(tmp_path: Path, opened: Browser) -> None:
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(site)], cwd=REPOSITORY, check=True)
    pages = {"index.html", *(f"docs/{page.stem}.html" for page in (REPOSITORY / "docs").glob("*.md"))}
    built = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    assert pages <= built.keys()
    for name, text in built.items():
        assert re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(?:https?:)?//', text) == [], name
    opened.open(site / "docs" / "cli.html")
    assert "Share a store" in until(opened, SEARCH)
    assert opened.errors == []
