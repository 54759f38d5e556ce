"""A campaign in Python, as in the notebook of the examples: it runs, displays itself, and its kept outputs are real.

To renew them, run `jupyter execute --inplace notebook.ipynb` in a copy of its folder.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dscampaign import Campaign, SpecError, UserError
from dscampaign.orchestrator.campaign.documents import RunDetails
from dscampaign.tests.support import REPOSITORY

KEPT = REPOSITORY / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    import nbformat  # late: every process of tests collects this file
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    shutil.copy(KEPT.parent / "curve.py", folder)
    notebook = nbformat.read(KEPT, 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return folder, notebook


@pytest.fixture
def campaign(executed: tuple[Path, Any]) -> Campaign:
    return Campaign.open("curves", dir=str(executed[0] / "campaign"))


def outputs(notebook: Any) -> list[str]:
    """What cells display as text, and print."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.get("text") or output["data"]["text/plain"] for output in shown]


def test_the_notebook_keeps_the_outputs_of_its_code(executed: tuple[Path, Any]) -> None:
    import nbformat

    assert outputs(executed[1]) == outputs(nbformat.read(KEPT, 4))
    pages = [cell.outputs[0].data["text/html"] for cell in executed[1].cells if "campaign" in cell.source.split("\n")]
    assert ["<img" in page and "<table>" in page for page in pages] == [True]


def test_a_campaign_is_read_without_its_spec(
    executed: tuple[Path, Any], campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert campaign.status("lr-0.1*").sentence == "curves: 3 completed"
    assert campaign.steps.shape[0] == 9 * 30
    assert set(campaign.runs["param.lr"]) == {0.02, 0.05, 0.1}
    assert campaign.recommend(by="loss").workloads[0].answer.rows[0].condition.name == "lr-0.1"
    assert campaign.report(tmp_path / "report").name == "report.html"
    explained = campaign.explain("lr-0.1")
    assert isinstance(explained, RunDetails)
    assert explained.run.name == "lr-0.1"
    assert repr(explained) == "<details of lr-0.1 of curves, completed>"
    assert repr(campaign.explain()).startswith("<details of curves: ")
    with pytest.raises(UserError, match="without its spec"):
        campaign.plan()
    other = {"name": "other", "command": "a.py {b}", "matrix": {"b": np.array([1, 2])}}
    (tmp_path / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no campaign named other"):
        Campaign.from_yaml(other, dir=str(executed[0] / "campaign")).status()
    with pytest.raises(UserError, match="no condition named lr-1"):
        campaign.recommend(baseline="lr-1")


def test_what_a_notebook_shows_is_escaped(campaign: Campaign) -> None:
    status = campaign.status("lr-0.1")
    hostile = status.runs[0]._replace(name="<script>", reason='<img onerror="x">')
    page = replace(status, runs=(hostile,))._repr_html_()
    assert "&lt;script&gt;" in page
    assert not {"<script>", "<img"} & set(re.findall("<[a-z]+>?", page))


def test_a_campaign_is_submitted_cancelled_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wait.py").write_text("import time, pathlib\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n")
    monkeypatch.setenv("CAMPAIGN_ASK_ABOVE_RUNS", "1")
    spec: dict[str, Any] = {
        "name": "two",
        "executor": "local",
        "launcher": "python",
        "command": ["wait.py", "{a}"],
        "code": "live",
    }
    spec |= {"matrix": {"a": [1, 2]}, "local": {"parallel": 2}, "telemetry_s": 0}
    campaign = Campaign.from_yaml(spec)
    assert "2 to submit" in str(campaign._repr_html_())
    assert repr(campaign.plan()) == "<plan of two: 2 to submit, 0 kept, 0 to cancel>"
    with pytest.raises(UserError, match="2 runs exceed ask_above_runs") as refused:
        campaign.submit()
    assert refused.value.hint == "write yes=True"
    assert not Path("campaign").exists()
    campaign.submit(yes=True)
    with pytest.raises(UserError, match="which runs"):
        campaign.cancel()
    campaign.cancel("a-1")
    with pytest.raises(TimeoutError, match="not settled"):
        campaign.wait(timeout=0.5, progress=False)
    Path("go").touch()
    campaign.wait()
    campaign.retry("a-1")
    assert campaign.wait(progress=False).sentence == "two: 2 completed"


def test_all_errors_of_a_spec_have_their_places() -> None:
    with pytest.raises(SpecError) as wrong:
        Campaign.from_yaml({"name": "x", "command": "a.py {b}", "matrix": {"c": [1]}, "repeat": 2})
    assert {"repeat", "command"} <= {problem.field for problem in wrong.value.problems}
    assert all(problem.line for problem in wrong.value.problems)
    with pytest.raises(UserError, match="a spec cannot hold this"):
        Campaign.from_yaml({"name": object()})
