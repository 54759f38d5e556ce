"""The charts' JavaScript comes from the user's cache only if nobody else can have written it there."""

from __future__ import annotations

from pathlib import Path

import pytest
import vl_convert

from dscampaign.orchestrator.report.page.render import vega_bundle


@pytest.mark.parametrize(("mode", "used"), [(0o600, "kept"), (0o666, "made")])
def test_a_file_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, used: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: "made")
    assert vega_bundle() == "made"
    [file] = (tmp_path / "dscampaign").iterdir()
    file.write_text("kept")
    file.chmod(mode)
    assert vega_bundle() == used
