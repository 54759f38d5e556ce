"""`Campaign` in Python: arguments of other types than text, specs as mappings, and obstacles while it waits."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dscampaign import Campaign, load
from dscampaign.db.errors import StoreMissing, StoreUnreachable
from dscampaign.orchestrator.api import campaign as api
from dscampaign.orchestrator.errors import UserError
from dscampaign.tests.support.cli_world import make_world

OWN = {"name": "own", "executor": "local", "command": "a.py {lr}", "launcher": "python", "code": "live"}


def planned(spec: Any, folder: Path, **options: Any) -> list[str]:
    plan = Campaign.from_yaml(spec, dir=folder, **options).plan()
    assert all(len(repr(run)) < 300 for run in plan.runs)
    return [run.name for run in plan.runs]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    return tmp_path


@pytest.mark.parametrize("values", [range(1, 3), {1: "a", 2: "b"}.keys(), (1, 2)])
def test_any_collection_is_an_axis(folder: Path, values: Any) -> None:
    assert planned(OWN | {"matrix": {"lr": values}}, folder) == ["lr-1", "lr-2"]


def test_a_file_that_pyyaml_reads_makes_the_same_campaign(folder: Path) -> None:
    text = yaml.safe_dump(OWN | {"env": {"RATE": "1e-4"}}) + "matrix: {lr: [1e-4, 3E5]}\n"
    (folder / "spec.yaml").write_text(text)
    mapping = yaml.safe_load(text)
    assert mapping["matrix"]["lr"] == ["1e-4", "3E5"]
    assert planned(mapping, folder) == planned("spec.yaml", folder)
    spec = Campaign.from_yaml(mapping, dir=folder)._spec.spec
    assert spec.env == {"RATE": "1e-4"}


def test_a_single_override_may_be_text(folder: Path) -> None:
    assert len(planned(OWN | {"matrix": {"lr": [1]}}, folder, sets="repeats=3")) == 3


def test_a_place_may_be_a_path(tmp_path: Path) -> None:
    make_world(tmp_path).store.close()
    (tmp_path / "sweep.yaml").write_text("name: sweep\n")
    assert Campaign.open(tmp_path / "sweep.yaml", dir=tmp_path / "campaign").name == "sweep"
    assert load(tmp_path / "sweep.yaml", dir=tmp_path / "campaign").name == "sweep"


@pytest.mark.parametrize(
    "call",
    [
        lambda campaign: campaign.status(["bad"]),
        lambda campaign: campaign.explain(3),
        lambda campaign: campaign.explain(""),
        lambda campaign: campaign.status(""),
        lambda campaign: campaign.compare("bad", None),
        lambda campaign: campaign.cancel(7),
        lambda campaign: campaign.recommend(baseline=1),
        lambda campaign: type(campaign).from_yaml(OWN, sets=[3]),
    ],
)
def test_a_name_that_is_no_text_is_an_error(tmp_path: Path, call: Callable[[Campaign], object]) -> None:
    make_world(tmp_path).store.close()
    campaign = Campaign.open(dir=tmp_path / "campaign")
    with pytest.raises(UserError, match="expected text, not"):
        call(campaign)


def test_a_wait_reports_each_obstacle_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path).store.close()

    def passes(*_: object, **__: object) -> Iterator[tuple[Exception, None]]:
        yield from [(StoreUnreachable("no answer"), None)] * 3

    monkeypatch.setattr(api, "until_settled", passes)
    Campaign.open(dir=tmp_path / "campaign").wait()
    assert capsys.readouterr().err.count("no answer") == 1


def test_a_traceback_has_the_hint_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing) as missing:
        Campaign.open(dir=tmp_path)
    assert f"hint: {missing.value.hint}" in "".join(traceback.format_exception(missing.value))
