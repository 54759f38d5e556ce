"""The machines that runs were on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dscampaign.orchestrator.cli.main import main
from dscampaign.tests.support.planted import Planted
from dscampaign.tests.support.report_page import Page

PlantStore = Callable[..., str]


def nodes(url: str, folder: Path) -> dict[str, str]:
    """The host memory limit of each node, as the page has it."""
    assert main(["report", "sweep", "--store", url, "-o", str(folder / "out")]) == 0
    tables = Page(folder / "out").tables("Environment")
    (found,) = (table for table in tables if table.header[0] == "node")
    return {row["node"]: row["host memory limit"] for row in found.rows}


def test_each_node_has_its_own_limit_and_none_is_no_limit_of_others(planted_url: PlantStore, tmp_path: Path) -> None:
    url = planted_url(
        Planted("both", (0.1,), host_limits_gb={"n0": 64.0, "n1": 256.0}),
        Planted("later", (0.1,), host_limits_gb={"n0": 0.0, "n2": 0.0}),
    )
    assert nodes(url, tmp_path) == {"n0": "64.0 GB", "n1": "256.0 GB", "n2": ""}


def test_jobs_may_have_other_limits_on_the_same_node(planted_url: PlantStore, tmp_path: Path) -> None:
    url = planted_url(
        Planted("large", (0.1,), host_limits_gb={"n0": 256.0}), Planted("small", (0.1,), host_limits_gb={"n0": 64.0})
    )
    assert nodes(url, tmp_path) == {"n0": "64.0 GB, 256.0 GB"}
