"""`make docs`: the site is complete, loads nothing from the network, and finds words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dscampaign.tests.support import REPOSITORY


@pytest.mark.nightly
def test_the_site_is_built_from_all_pages_without_the_network(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)], cwd=REPOSITORY, check=True)
    pages = {"index.html", *(f"docs/{page.stem}.html" for page in (REPOSITORY / "docs").glob("*.md"))}
    built = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    assert pages <= built.keys()
    for name, text in built.items():
        assert re.findall(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(?:https?:)?//', text) == [], name
    assert "micro-batch" in (tmp_path / "search" / "search_index.json").read_text()
