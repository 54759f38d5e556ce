"""`dscampaign.load`: a campaign's results as pandas frames."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

import dscampaign
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.cli_world import World, make_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("CAMPAIGN_DIR", "CAMPAIGN_STORE"):
        monkeypatch.delenv(name, raising=False)
    return make_world(tmp_path, lr=0.1)


@pytest.mark.usefixtures("world")
def test_runs_have_their_parameters_as_columns() -> None:
    runs = dscampaign.load("sweep").runs
    assert list(runs["run"]) == ["done", "small", "bad", "new"]
    assert list(runs["param.lr"]) == [0.1] * 4
    assert runs.set_index("run")["loss"].dropna().to_dict() == {"done": 1.0, "small": 2.5}
    assert runs["step"].dtype == "Int64"
    assert list(runs["step"].isna()) == [False, False, False, True]


@pytest.mark.usefixtures("world")
def test_steps_carry_the_parameters_and_keep_the_order_of_the_matrix() -> None:
    steps = dscampaign.load().steps
    assert list(zip(steps["run"], steps["step"], strict=True)) == [
        ("done", 1), ("done", 2), ("done", 3), ("small", 1), ("bad", 1),
    ]  # fmt: skip
    assert list(steps["run"].cat.categories) == ["done", "small", "bad", "new"]
    assert list(steps["param.lr"]) == [0.1] * 5
    assert steps["ts_s"][0] == pd.Timestamp(101.0, unit="s", tz="UTC")
    assert steps.groupby("run", observed=True)["loss"].min().to_dict()["done"] == 1.0
    assert steps.loc[steps["run"] == "small", "my_figure"].item() == 1.5


def test_it_looks_where_the_command_line_looks(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "notebooks"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (tmp_path / "campaign.toml").write_text('dir = "campaign"\n')
    assert dscampaign.load().name == "sweep"
    (tmp_path / "campaign.toml").unlink()
    assert dscampaign.load(dir=str(world.dir)).name == "sweep"
    assert dscampaign.load(store=world.store.url_without_password).name == "sweep"
    monkeypatch.setenv("CAMPAIGN_DIR", str(world.dir))
    assert dscampaign.load("sweep").name == "sweep"


@pytest.mark.usefixtures("world")
def test_a_campaign_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no campaign named swep") as raised:
        dscampaign.load("swep")
    (note,) = raised.value.__notes__
    assert note.startswith("hint: one of: ")


@pytest.mark.usefixtures("world")
def test_without_pandas_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'dscampaign\[pandas\]'"):
        dscampaign.load("sweep")
