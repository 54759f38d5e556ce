"""Where a setting comes from, and that the first place wins."""

import os
from pathlib import Path

import pytest

from dscampaign.orchestrator.cli.main import main
from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.settings import Settings, resolve


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def source(name: str, settings: Settings) -> str:
    return next(origin.source for origin in settings.origins if origin.name == name)


def test_the_defaults_lie_beside_the_working_directory(tmp_path: Path, home: dict[str, str]) -> None:
    settings = resolve({}, environ=home, cwd=tmp_path)
    assert settings.dir == tmp_path / "campaign"
    assert settings.store == f"sqlite:///{tmp_path}/campaign/campaign.db"


def test_each_place_gives_way_to_the_one_before_it(tmp_path: Path, home: dict[str, str]) -> None:
    own = tmp_path / "config" / "dscampaign" / "campaign.toml"
    own.parent.mkdir(parents=True)
    own.write_text('dir = "/xdg"\nask_above_runs = 7\n')
    assert resolve({}, environ=home, cwd=tmp_path).dir == Path("/xdg")
    (tmp_path / "campaign.toml").write_text('dir = "shared"\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    settings = resolve({}, environ=home, cwd=below)
    assert settings.dir == tmp_path / "shared"
    assert settings.ask_above_runs == 7
    assert source("dir", settings) == str(tmp_path / "campaign.toml")
    spec: dict[str, str | None] = {"dir": "/spec/${WHO}"}
    assert resolve({}, spec, environ=home | {"WHO": "me"}, cwd=below).dir == Path("/spec/me")
    environ = home | {"CAMPAIGN_DIR": "/environ"}
    assert resolve({}, spec, environ=environ, cwd=below).dir == Path("/environ")
    assert resolve({"dir": "flag"}, spec, environ=environ, cwd=below).dir == below / "flag"


def test_an_unknown_setting_is_no_silent_one(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "campaign.toml").write_text('stroe = "x"\n')
    with pytest.raises(UserError, match="stroe") as caught:
        resolve({}, environ=home, cwd=tmp_path)
    assert caught.value.hint == 'did you mean "store"?'


def test_a_limit_that_is_no_number_is_said_with_its_source(tmp_path: Path, home: dict[str, str]) -> None:
    with pytest.raises(UserError, match="many") as caught:
        resolve({}, environ=home | {"CAMPAIGN_ASK_ABOVE_RUNS": "many"}, cwd=tmp_path)
    assert "CAMPAIGN_ASK_ABOVE_RUNS" in str(caught.value.hint)


def test_a_password_is_not_shown(tmp_path: Path, home: dict[str, str]) -> None:
    settings = resolve({"store": "postgresql://me:secret@host/db"}, environ=home, cwd=tmp_path)
    assert settings.store == "postgresql://me:secret@host/db"
    assert "postgresql://me@host/db" in [origin.value for origin in settings.shown]
    assert not any("secret" in origin.value for origin in settings.shown)


# -- a file that somebody else put there -------------------------------------------------------------------------------


def below_public(tmp_path: Path) -> Path:
    """A folder of one's own below a public one, as /scratch is, that holds a campaign.toml."""
    tmp_path.chmod(0o1777)
    (tmp_path / "campaign.toml").write_text('store = "sqlite:////tmp/planted.db"\n')
    (tmp_path / "mine").mkdir(mode=0o700)
    return tmp_path / "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="LEFT OUT: only root can give a file to somebody else")
def test_a_strangers_settings_above_are_refused_with_the_owner(tmp_path: Path, home: dict[str, str]) -> None:
    mine = below_public(tmp_path)
    assert resolve({}, environ=home, cwd=mine).store == "sqlite:////tmp/planted.db"
    os.chown(tmp_path / "campaign.toml", 12345, 12345)
    with pytest.raises(UserError, match=r"campaign.toml belongs to user 12345, so it is not used") as caught:
        resolve({}, environ=home, cwd=mine)
    assert str(caught.value).count("campaign.toml") == 1
    assert caught.value.hint == (
        "make a campaign.toml of your own in this folder (`touch campaign.toml`), or give `--dir` and `--store`"
    )
    (mine / "campaign.toml").write_text("ask_above_runs = 5\n")
    assert resolve({}, environ=home, cwd=mine).ask_above_runs == 5  # the nearest counts


def test_settings_that_others_can_write_are_refused(tmp_path: Path, home: dict[str, str]) -> None:
    mine = below_public(tmp_path)
    (tmp_path / "campaign.toml").chmod(0o666)
    with pytest.raises(UserError, match="others can write to") as caught:
        resolve({}, environ=home, cwd=mine)
    assert f"chmod go-w {tmp_path / 'campaign.toml'}" in str(caught.value.hint)


def test_settings_in_a_folder_where_others_can_replace_them_are_refused(tmp_path: Path, home: dict[str, str]) -> None:
    mine = below_public(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(UserError, match=f"others can write to {tmp_path}"):
        resolve({}, environ=home, cwd=mine)


@pytest.mark.parametrize("given", ["flags", "environment", "spec"])
def test_settings_that_others_can_write_do_not_matter_where_nothing_is_needed_of_them(
    given: str, tmp_path: Path, home: dict[str, str]
) -> None:
    mine, place = below_public(tmp_path), {"dir": "/here", "store": "sqlite:////here/it.db"}
    (tmp_path / "campaign.toml").write_text('store = "sqlite:////tmp/planted.db"\nask_above_runs = 9999\n')
    (tmp_path / "campaign.toml").chmod(0o666)
    environ = home | ({f"CAMPAIGN_{name.upper()}": value for name, value in place.items()} if given[0] == "e" else {})
    settings = resolve(place if given == "flags" else {}, place if given == "spec" else {}, environ=environ, cwd=mine)
    assert (str(settings.dir), settings.store, settings.ask_above_runs) == ("/here", "sqlite:////here/it.db", 20)
    with pytest.raises(UserError, match="so it is not used"):
        resolve({"dir": "/here"}, environ=home, cwd=mine)  # it could name the store


def test_the_remedies_for_settings_of_others_work_from_this_folder(tmp_path: Path, home: dict[str, str]) -> None:
    mine = below_public(tmp_path)
    (mine / "campaign.toml").touch(mode=0o600)
    (mine / "campaign.toml").chmod(0o666)
    with pytest.raises(UserError) as caught:
        resolve({}, environ=home, cwd=mine)
    hint = f"`chmod go-w {mine / 'campaign.toml'}`, or give `--dir` and `--store`"
    assert caught.value.hint == hint  # no other one would be nearer


def test_validate_needs_no_settings(
    tmp_path: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = below_public(tmp_path)
    (tmp_path / "campaign.toml").chmod(0o666)
    (mine / "spec.yaml").write_text(
        "name: one\nexecutor: local\ncommand: train.py\ntrain: {steps: 2, global_batch: 2}\n"
    )
    (mine / "train.py").touch()
    monkeypatch.chdir(mine)
    monkeypatch.setenv("XDG_CONFIG_HOME", home["XDG_CONFIG_HOME"])
    assert main(["validate", "spec.yaml"]) == 0, capsys.readouterr().err
    assert main(["plan", "spec.yaml"]) == 2
