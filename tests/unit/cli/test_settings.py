"""Where a setting comes from, and that the first place wins."""

import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from dscampaign.orchestrator.errors import UserError
from dscampaign.orchestrator.settings import Settings, resolve


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def source(name: str, settings: Settings) -> str:
    return next(origin.source for origin in settings.origins if origin.name == name)


def test_each_place_gives_way_to_the_one_before_it(tmp_path: Path, home: dict[str, str]) -> None:
    settings = resolve({}, environ=home, cwd=tmp_path)
    assert settings.dir == tmp_path / "campaign"
    assert settings.store == f"sqlite:///{tmp_path}/campaign/campaign.db"
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
    for file in (tmp_path / "campaign.toml", mine / "campaign.toml"):
        file.touch()
        file.chmod(0o666)
        with pytest.raises(UserError, match="others can write to") as caught:
            resolve({}, environ=home, cwd=mine)
        assert f"`chmod go-w {file}`, or" in str(caught.value.hint)
    assert caught.value.hint == f"`chmod go-w {file}`, or give `--dir` and `--store`"  # no other one would be nearer


@pytest.mark.parametrize(("dir", "refused"), [("o%j", "%"), (r"o\b", "\\"), ("o b", "")])
def test_a_folder_whose_path_slurm_would_change_is_refused(tmp_path: Path, dir: str, refused: str) -> None:
    settings = resolve({"dir": dir}, environ={}, cwd=tmp_path)
    settings.require_dir_of("local")
    with pytest.raises(UserError, match=re.escape(f"o{refused}")) if refused else nullcontext():
        settings.require_dir_of("slurm")
