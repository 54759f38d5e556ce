"""The machines that runs were on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.planted import Planted
from dscampaign.tests.support.report_page import Page

PlantStore = Callable[..., str]


def test_processors_and_how_busy_they_were_stand_beside_the_system(planted_url: PlantStore, tmp_path: Path) -> None:
    url = planted_url(Planted("base", host_limits_gb={"n0": 64.0, "n1": 64.0}))
    assert main(["report", "sweep", "--store", url, "--output", str(tmp_path / "out")]) == 0
    (found,) = (table for table in Page(tmp_path / "out").tables("Environment") if table.header[0] == "node")
    assert [row["node"] for row in found.rows] == ["n0", "n1"]
    row = found.rows[1]
    assert row["CPU"] == "Intel Xeon Platinum 8480+"
    assert (row["cores used"], row["system"], row["CPU load (%)"]) == ("104 of 208", "Debian GNU/Linux 12", "37")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["runs"][0]["machines"]["n1"]["busy_pct"] == 37
